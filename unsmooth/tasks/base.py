"""What a run learns: a model, its items, its loss, and how good it is. The trainer knows nothing else of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from unsmooth.data.items import ItemDataset
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import Recipe

# Recipe fields that only classification supports, and the values that switch them off.
CLASSIFICATION_FIELDS = {"mixup": 0.0, "cutmix": 0.0, "distillation": "none", "auto_augment": "", "erasing": 0.0}


class Score(Protocol):
    """How good a model is on validation items; it goes from process to process."""

    @property
    def primary_metric(self) -> float:
        """The number that decides which epoch is the best; more is better."""

    def line(self) -> dict[str, float | None]:
        """Entries of metrics.jsonl, whose names begin with val_."""

    def result(self) -> dict[str, Any]:
        """Entries of result.json, "skipped" (name: reason) among them."""


class Task(ABC):
    """One run's task. What its constructor checks is checked before anything is built or written."""

    name: str  # and `options`, its own words: as they were asked for
    options: Mapping[str, str] = {}
    primary_metric: str  # what `Score.primary_metric` is called in result.json
    model: nn.Module  # set by `build`
    size: tuple[int, int, int]  # of an image as the host takes it; set by `build`
    train: ItemDataset  # set by `build`
    val: ItemDataset

    @property
    @abstractmethod
    def data(self) -> str:
        """The name of the data."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """ItemDataset by split ("train", "val"), and what else of the data must stay as it is for a run to go on."""

    def build(self) -> None:  # noqa: B027  # most tasks are built when they are opened
        """Make the model and the items."""

    def to(self, device: torch.device) -> None:  # noqa: B027
        """Move what is no part of the model, as a teacher."""

    def prepare(self, batch: Any, epoch: int, step: int) -> Any:
        """A batch on its device, before it is cut into parts; as it is, or mixed."""
        return batch

    @abstractmethod
    def loss(self, runner: Any, batch: Any) -> Tensor:
        """The mean loss of a batch. `runner` is the model, or what DistributedDataParallel or compile made of it."""

    @abstractmethod
    def score(self, model: nn.Module, batches: Iterable[Any], device: torch.device, amp: str) -> Score:
        """How good a model is on some batches; its modes and gradients stay as they are."""

    @abstractmethod
    def join(self, scores: Sequence[Any]) -> Score:
        """The scores of several processes as one."""

    @abstractmethod
    def save(self, model: nn.Module, folder: Path) -> None:
        """The model as users load it."""

    def keep(self, score: Any, folder: Path) -> None:  # noqa: B027
        """Write what the score knows of single items beside the result."""

    def idle(self) -> bool:
        """Whether the loss may leave some parameters out, which DistributedDataParallel must know."""
        return True

    def monitor_images(self, count: int) -> Tensor | None:
        """Some validation images to follow vitals on; nothing where the model takes more than images."""
        return None

    def where(self, images: Tensor | None, amp: str, device: torch.device) -> str:
        """Where the loss (of these images) or the gradient (without images) broke first, in words."""
        return "which block went first is not known for this task"


def reject_classification_fields(recipe: Recipe, task: str) -> None:
    """Raise if the recipe sets a field that the task would ignore."""
    for name, off in CLASSIFICATION_FIELDS.items():
        if getattr(recipe, name) != off:
            raise UnsmoothError(
                f"{name} is not supported by the task {task} (got {getattr(recipe, name)!r}). Use {name}={off!r} or "
                f"--recipe {task}"
            )

"""Interface of a task: a model, its datasets, its loss and its score. The trainer knows nothing else about a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from unsmooth.data.items import ItemDataset
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import Recipe
from unsmooth.results.training import MetricValue
from unsmooth.spec import ModelSpec

# Recipe fields that only classification supports, and the values that switch them off.
CLASSIFICATION_FIELDS = {"mixup": 0.0, "cutmix": 0.0, "distillation": "none", "auto_augment": "", "erasing": 0.0}


@dataclass(frozen=True)
class TaskRequest:
    """Everything that a task is opened with.

    Attributes:
        spec: Model spec, HOST or HOST+remedy(option=value), as text or parsed.
        data: Name or path of the data.
        recipe: Hyper-parameters of the run.
        seed: Seed of weights, order and augmentation.
        checkpoint: Weights to start from.
        pretrained: Whether to start from the library's pretrained weights.
        val_data: Validation images, if they are not part of `data`.
        data_dir: Folder of timm dataset files.
        strict_data: Whether a broken image raises instead of being skipped.
        options: Options of the task itself, as text or as values.
    """

    spec: str | ModelSpec
    data: str | Path
    recipe: Recipe
    seed: int = 0
    checkpoint: Path | None = None
    pretrained: bool = False
    val_data: str | None = None
    data_dir: Path | None = None
    strict_data: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class Score(Protocol):
    """Score of a model on validation items. It is pickled to be gathered from all processes."""

    @property
    def images(self) -> int:
        """Number of items."""

    @property
    def skipped(self) -> dict[str, str]:
        """Reasons by name of broken items."""

    @property
    def primary_metric(self) -> float:
        """Value that the best epoch is chosen by; higher is better."""

    def epoch_metrics(self) -> dict[str, MetricValue]:
        """Metrics of an epoch; their names start with `val_`."""

    def metrics(self) -> dict[str, MetricValue]:
        """Metrics of `TrainingResult`."""


class Task(ABC):
    """Task of one run.

    The constructor checks everything that can be checked without building the model. `build` sets `model`,
    `image_size`, `train` and `val`.

    Attributes:
        name: Name of the task.
        primary_metric: Name of `Score.primary_metric`.
        request: What the task was opened with.
        model: Model to train.
        image_size: Channels, height and width of the model's input.
        train: Training items.
        val: Validation items.
    """

    name: str
    primary_metric: str
    request: TaskRequest
    model: nn.Module
    image_size: tuple[int, int, int]
    train: ItemDataset
    val: ItemDataset

    @property
    @abstractmethod
    def data(self) -> str:
        """Name of the data."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Number of items in "train" and "val", and other sizes that must not change when a run is resumed."""

    def fingerprint(self) -> str:
        """A digest of some of the data; "" if it is not taken."""
        return ""

    def build(self) -> None:  # noqa: B027
        """Build the model and the datasets."""

    def to(self, device: torch.device) -> None:  # noqa: B027
        """Move everything that is not part of the model, such as a teacher, to a device."""

    def prepare(self, batch: Any, epoch: int, step: int) -> Any:
        """Transform a batch on its device, before gradient accumulation splits it (mixup, for instance)."""
        return batch

    @abstractmethod
    def loss(self, runner: Any, batch: Any) -> Tensor:
        """Compute the mean loss of a batch.

        Args:
            runner: The model, or its DistributedDataParallel or compiled wrapper.
            batch: Batch of `train`, on the device of the model.

        Returns:
            Scalar loss.
        """

    @abstractmethod
    def score(self, model: nn.Module, batches: Iterable[Any], device: torch.device, amp: str) -> Score:
        """Score a model on validation batches, without changing its mode or gradients.

        Args:
            model: Model to score, which may be the weight average instead of `self.model`.
            batches: Batches of `val`.
            device: Device of the model.
            amp: Autocast precision.

        Returns:
            The score of these batches.
        """

    @abstractmethod
    def merge_scores(self, scores: Sequence[Any]) -> Score:
        """Merge the scores of all processes."""

    @abstractmethod
    def save(self, model: nn.Module, folder: Path) -> None:
        """Save a model in the format that users load."""

    def save_predictions(self, score: Any, folder: Path) -> None:  # noqa: B027
        """Write per-item results next to result.json."""

    def has_unused_parameters(self) -> bool:
        """Whether the loss may not depend on some parameters, as DistributedDataParallel needs to know."""
        return True

    def monitor_images(self, count: int) -> Tensor | None:
        """Validation images to measure vitals on; None if the model needs more than images."""
        return None

    def locate_nonfinite(self, images: Tensor | None, amp: str, device: torch.device) -> str:
        """Describe where non-finite values appear first.

        Args:
            images: Images whose loss is not finite; None to search the gradients.
            amp: Autocast precision.
            device: Device of the model.

        Returns:
            Text for the error message.
        """
        return "the first non-finite block is not known for this task"


def reject_classification_fields(recipe: Recipe, task: str) -> None:
    """Raise if the recipe sets a field that the task would ignore."""
    for name, off in CLASSIFICATION_FIELDS.items():
        if getattr(recipe, name) != off:
            raise UnsmoothError(
                f"{name} is not supported by the task {task} (got {getattr(recipe, name)!r}). Use {name}={off!r} or "
                f"recipe={task!r} (--recipe)."
            )

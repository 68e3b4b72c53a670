"""Which images a model gets right, image by image, so that two models can be compared on the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsmooth.data.pictures import ImageBatch
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.modes import autocast, device_of, eval_mode
from unsmooth.hosts.outputs import forward
from unsmooth.tasks.classification.intervals import wilson

SCORES = "scores.npz"  # which validation images the last model of a run gets right
RANKS = 5
NONE = -1  # the class of an image whose logits are not finite: never right

Array = np.ndarray[Any, Any]
Change = Callable[[Tensor, Tensor], Tensor]  # images and labels on the model's device, to other images


@dataclass
class Scores:
    """Scores by image, in order of place in the data. Labels and predictions are indices of the model's classes."""

    places: Array
    labels: Array
    ranked: Array  # (images, up to five): the classes with the largest logits, best first
    loss: Array | None  # cross-entropy
    classes: int  # that the answer was chosen from
    skipped: dict[str, str] = field(default_factory=dict)
    accepted: Sequence[frozenset[int]] | None = None  # by place, where an image may have several right labels

    @property
    def images(self) -> int:
        return len(self.places)

    @property
    def predicted(self) -> Array:
        return self.ranked[:, 0]

    @property
    def correct(self) -> Array:
        """Whether the best guess is right, by image."""
        return self._right()[:, 0]

    @property
    def correct5(self) -> Array | None:
        """Whether one of the five best guesses is; with fewer than five classes that says nothing, and is None."""
        return None if self.classes < RANKS else np.asarray(self._right().any(1))

    @property
    def top1(self) -> float:
        return float(self.correct.mean())

    @property
    def top5(self) -> float | None:
        found = self.correct5
        return None if found is None else float(found.mean())

    @property
    def mean_loss(self) -> float | None:
        """None where there is no loss, or where it is not finite."""
        mean = None if self.loss is None else float(self.loss.mean(dtype=np.float64))
        return mean if mean is not None and np.isfinite(mean) else None

    def _right(self) -> Array:
        if self.accepted is None:
            return np.asarray(self.ranked == self.labels[:, None])
        rows = zip(self.places, self.ranked, strict=True)
        return np.array([[guess in self.accepted[place] for guess in guesses] for place, guesses in rows])

    @property
    def primary_metric(self) -> float:
        return self.top1

    def epoch_metrics(self) -> dict[str, float | None]:
        return {"val_loss": self.mean_loss, "val_top1": self.top1, "val_top5": self.top5}

    def summary(self) -> dict[str, Any]:
        return {
            "top1": self.top1, "top5": self.top5, "loss": self.mean_loss, "images": self.images,
            "skipped": self.skipped,
        }  # fmt: skip

    def row(self, test: str) -> dict[str, Any]:
        """A row of a table: means, and Wilson's intervals of the shares."""
        top5 = self.correct5
        return {
            "test": test,
            "images": self.images,
            "top1": self.top1,
            "top1_interval": list(wilson(int(self.correct.sum()), self.images)),
            "top5": self.top5,
            "top5_interval": None if top5 is None else list(wilson(int(top5.sum()), self.images)),
            "loss": self.mean_loss,
            "classes": self.classes,
            "skipped": len(self.skipped),
            "not_finite": int((self.predicted == NONE).sum()),
        }


def merge_scores(parts: Sequence[Scores]) -> Scores:
    """Scores of several batches, or of several processes, as one."""
    order = np.argsort(np.concatenate([part.places for part in parts]), kind="stable")

    def column(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    skipped = {name: reason for part in parts for name, reason in part.skipped.items()}
    return Scores(column("places"), column("labels"), column("ranked"), column("loss"), parts[0].classes, skipped)


def score(
    model: nn.Module, batches: Iterable[ImageBatch], classes: Sequence[int] | None = None, amp: str = "none",
    progress: Callable[[int], None] | None = None,
) -> Scores:  # fmt: skip
    """Scores of a model, on the device it is on; its modes and gradients are as before.

    `classes`: the answer is chosen from these of the model's classes. `progress` is told the images of each batch.
    """
    return score_each(model, batches, {"": None}, classes, amp, progress)[""]


def score_each(
    model: nn.Module, batches: Iterable[ImageBatch], changes: Mapping[str, Change | None],
    classes: Sequence[int] | None = None, amp: str = "none", progress: Callable[[int], None] | None = None,
) -> dict[str, Scores]:  # fmt: skip
    """Scores on the images as they are (None) and after changes to them, by name; every image is read once."""
    device = device_of(model)
    parts: dict[str, list[Scores]] = {name: [] for name in changes}
    skipped: dict[str, str] = {}
    with eval_mode(model):
        for batch in batches:
            skipped |= batch.skipped
            if len(batch.labels):
                images, labels = batch.images.to(device), batch.labels.to(device)
                for name, change in changes.items():
                    seen = images if change is None else change(images, labels)
                    with autocast(amp, device):
                        logits = forward(model, seen)
                    parts[name].append(_scores(logits.float(), labels, batch.places, classes))
            if progress is not None:
                progress(len(batch.labels) + len(batch.skipped))
    if not any(parts.values()):
        first = next(iter(skipped.items()), None)
        reason = f": all {len(skipped)} were skipped, the first one {first[0]}: {first[1]}" if first else ""
        raise UnsmoothError(f"there is no image that can be scored{reason}")
    joined = {name: merge_scores(found) for name, found in parts.items()}
    for found in joined.values():
        found.skipped = skipped
    return joined


def _scores(logits: Tensor, labels: Tensor, places: Tensor, classes: Sequence[int] | None) -> Scores:
    if labels.min() < 0 or labels.max() >= logits.shape[1]:
        wrong = next(int(y) for y in labels if not 0 <= y < logits.shape[1])
        raise UnsmoothError(
            f"the data has the label {wrong}, and the model {logits.shape[1]} classes: 0 to {logits.shape[1] - 1}"
        )
    chosen = torch.arange(logits.shape[1]) if classes is None else torch.as_tensor(classes)
    chosen = chosen.to(logits.device)
    place = torch.full((logits.shape[1],), NONE, device=logits.device)
    place[chosen] = torch.arange(len(chosen), device=logits.device)
    if (place[labels] < 0).any():
        raise UnsmoothError(
            f"the data has the label {int(labels[place[labels] < 0][0])}, which is none of the classes to choose from"
        )
    logits = logits[:, chosen]
    loss = F.cross_entropy(logits, place[labels], reduction="none")
    ranked = chosen[logits.topk(min(RANKS, len(chosen)), 1).indices]
    ranked[~logits.isfinite().all(1)] = NONE
    return Scores(places.numpy(), labels.cpu().numpy(), ranked.cpu().numpy(), loss.cpu().numpy(), len(chosen))

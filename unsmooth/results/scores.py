"""Per-image scores of a classifier, so that two models can be compared on the same images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unsmooth.results.training import MetricValue
from unsmooth.utils.intervals import wilson_interval

RANKS = 5
NONE = -1  # predicted class of an image whose logits are not finite

Array = np.ndarray[Any, Any]


@dataclass
class Scores:
    """Scores of a classifier per image, in the order of the data.

    Attributes:
        indices: Indices of the images in the data.
        labels: Labels, as classes of the model.
        ranked: Classes with the highest logits, best first; at most five per image.
        loss: Cross-entropy per image, if known.
        classes: Number of classes that predictions are restricted to.
        skipped: Reasons by name of broken images.
        accepted: All correct labels by index, if images have several.
    """

    indices: Array
    labels: Array
    ranked: Array
    loss: Array | None
    classes: int
    skipped: dict[str, str] = field(default_factory=dict)
    accepted: Sequence[frozenset[int]] | None = None

    @property
    def images(self) -> int:
        return len(self.indices)

    @property
    def predicted(self) -> Array:
        return self.ranked[:, 0]

    @property
    def correct(self) -> Array:
        """Whether the top prediction is correct, per image."""
        return self._matches()[:, 0]

    @property
    def correct5(self) -> Array | None:
        """Whether one of the top five predictions is correct, per image; None with fewer than five classes."""
        return None if self.classes < RANKS else np.asarray(self._matches().any(1))

    @property
    def top1(self) -> float:
        return float(self.correct.mean())

    @property
    def top5(self) -> float | None:
        correct = self.correct5
        return None if correct is None else float(correct.mean())

    @property
    def mean_loss(self) -> float | None:
        """Mean cross-entropy; None if it is unknown or not finite."""
        mean = None if self.loss is None else float(self.loss.mean(dtype=np.float64))
        return mean if mean is not None and np.isfinite(mean) else None

    def _matches(self) -> Array:
        if self.accepted is None:
            return np.asarray(self.ranked == self.labels[:, None])
        rows = zip(self.indices, self.ranked, strict=True)
        return np.array([[guess in self.accepted[index] for guess in guesses] for index, guesses in rows])

    @property
    def primary_metric(self) -> float:
        return self.top1

    def epoch_metrics(self) -> dict[str, MetricValue]:
        return {"val_loss": self.mean_loss, "val_top1": self.top1, "val_top5": self.top5}

    def metrics(self) -> dict[str, MetricValue]:
        return {"top1": self.top1, "top5": self.top5, "loss": self.mean_loss}

    def row(self, test: str) -> dict[str, Any]:
        """Row of a table: means, and Wilson intervals of the accuracies."""
        top5 = self.correct5
        return {
            "test": test,
            "images": self.images,
            "top1": self.top1,
            "top1_interval": accuracy_interval(self.correct),
            "top5": self.top5,
            "top5_interval": None if top5 is None else accuracy_interval(top5),
            "loss": self.mean_loss,
            "classes": self.classes,
            "skipped": len(self.skipped),
            "not_finite": int((self.predicted == NONE).sum()),
        }


def accuracy_interval(correct: Array) -> list[float]:
    """95 % Wilson score interval of an accuracy."""
    return list(wilson_interval(int(correct.sum()), len(correct)))

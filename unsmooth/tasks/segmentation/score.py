"""How well labels of pixels overlap: one table of counts over all pictures, and what is read off it.

With n_ij pixels of class i that were called j, t_i = Σ_j n_ij and p_j = Σ_i n_ij:

    IoU_i = n_ii / (t_i + p_i − n_ii)     mIoU: the mean over classes with t_i + p_i > 0
    pixel accuracy = Σ n_ii / Σ t_i       mean accuracy: the mean of n_ii / t_i over classes with t_i > 0

Pixels without a label do not count. A class that is neither there nor called is left out, as mmsegmentation does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError
from unsmooth.tasks.segmentation.layout import IGNORE

Array = np.ndarray[Any, Any]


@dataclass
class SegmentationScore:
    """Counts of pixels, (class, what it was called); the last column is for pictures without finite logits."""

    counts: Array
    images: int = 0
    skipped: dict[str, str] = field(default_factory=dict)

    @classmethod
    def none(cls, classes: int) -> SegmentationScore:
        return cls(np.zeros((classes, classes + 1), dtype=np.int64))

    def add(self, labels: Tensor, called: Tensor) -> None:
        """One picture's pixels: labels, and what they were called (as many as there are classes: nothing)."""
        rows, columns = self.counts.shape
        there = labels != IGNORE
        pairs = labels[there].long() * columns + called[there].long()
        self.counts += torch.bincount(pairs, minlength=rows * columns).view(rows, columns).cpu().numpy()
        self.images += 1

    @property
    def class_iou(self) -> Array:
        """By class; nan for one that is left out."""
        return _shares(self._right(), self.counts.sum(1) + self.counts[:, :-1].sum(0) - self._right())

    @property
    def class_accuracy(self) -> Array:
        return _shares(self._right(), self.counts.sum(1))

    @property
    def miou(self) -> float:
        return _mean(self.class_iou)

    @property
    def mean_accuracy(self) -> float:
        return _mean(self.class_accuracy)

    @property
    def pixel_accuracy(self) -> float:
        return float(_shares(self._right().sum(), self.counts.sum()))

    @property
    def primary_metric(self) -> float:
        return self.miou

    def epoch_metrics(self) -> dict[str, float | None]:
        return {f"val_{name}": value for name, value in self._means().items()}

    def summary(self) -> dict[str, Any]:
        return {
            **self._means(), "images": self.images,
            "class_iou": [None if np.isnan(value) else float(value) for value in self.class_iou],
            "skipped": self.skipped,
        }  # fmt: skip

    def _means(self) -> dict[str, float | None]:
        return {"miou": self.miou, "pixel_accuracy": self.pixel_accuracy, "mean_accuracy": self.mean_accuracy}

    def _right(self) -> Array:
        return np.diagonal(self.counts)


def merge_scores(parts: Sequence[SegmentationScore]) -> SegmentationScore:
    """Several processes' pictures as one score."""
    whole = SegmentationScore.none(len(parts[0].counts))
    for part in parts:
        whole.counts += part.counts
        whole.images += part.images
        whole.skipped |= part.skipped
    if not whole.counts.any():
        first = next(iter(whole.skipped.items()), None)
        reason = f": {len(whole.skipped)} were skipped, the first one {first[0]}: {first[1]}" if first else ""
        raise UnsmoothError(f"there is no labelled pixel that can be scored{reason}")
    return whole


def _shares(part: Any, whole: Any) -> Array:
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan: there is no such pixel
        return np.asarray(part / whole)


def _mean(values: Array) -> float:
    return float(values[~np.isnan(values)].mean())

"""Segmentation metrics from a confusion matrix over all images.

With n_ij pixels of class i that are predicted as j, t_i = Σ_j n_ij and p_j = Σ_i n_ij:

    IoU_i = n_ii / (t_i + p_i − n_ii)     mIoU: the mean over classes with t_i + p_i > 0
    pixel accuracy = Σ n_ii / Σ t_i       mean accuracy: the mean of n_ii / t_i over classes with t_i > 0

Unlabelled pixels are ignored. Classes that are neither labelled nor predicted are left out, as in mmsegmentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError
from unsmooth.results.training import MetricValue
from unsmooth.tasks.segmentation.layout import IGNORE

Array = np.ndarray[Any, Any]


@dataclass
class SegmentationScore:
    """Confusion matrix of pixels (class, predicted class); the last column is for images with non-finite logits."""

    counts: Array
    images: int = 0
    skipped: dict[str, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, classes: int) -> SegmentationScore:
        return cls(np.zeros((classes, classes + 1), dtype=np.int64))

    def add(self, labels: Tensor, predicted: Tensor) -> None:
        """Add the pixels of one image. The number of classes as a prediction means non-finite logits."""
        rows, columns = self.counts.shape
        there = labels != IGNORE
        pairs = labels[there].long() * columns + predicted[there].long()
        self.counts += torch.bincount(pairs, minlength=rows * columns).view(rows, columns).cpu().numpy()
        self.images += 1

    @property
    def class_iou(self) -> Array:
        """IoU per class; nan for classes that are left out."""
        return _ratio(self._correct(), self.counts.sum(1) + self.counts[:, :-1].sum(0) - self._correct())

    @property
    def class_accuracy(self) -> Array:
        return _ratio(self._correct(), self.counts.sum(1))

    @property
    def miou(self) -> float:
        return _mean(self.class_iou)

    @property
    def mean_accuracy(self) -> float:
        return _mean(self.class_accuracy)

    @property
    def pixel_accuracy(self) -> float:
        return float(_ratio(self._correct().sum(), self.counts.sum()))

    @property
    def primary_metric(self) -> float:
        return self.miou

    def epoch_metrics(self) -> dict[str, MetricValue]:
        return {f"val_{name}": value for name, value in self._means().items()}

    def metrics(self) -> dict[str, MetricValue]:
        classes = [None if np.isnan(value) else float(value) for value in self.class_iou]
        return {**self._means(), "class_iou": classes}

    def _means(self) -> dict[str, float]:
        return {"miou": self.miou, "pixel_accuracy": self.pixel_accuracy, "mean_accuracy": self.mean_accuracy}

    def _correct(self) -> Array:
        return np.diagonal(self.counts)


def merge_scores(scores: Sequence[SegmentationScore]) -> SegmentationScore:
    """Merge the scores of several processes."""
    merged = SegmentationScore.empty(len(scores[0].counts))
    for score in scores:
        merged.counts += score.counts
        merged.images += score.images
        merged.skipped |= score.skipped
    if not merged.counts.any():
        first = next(iter(merged.skipped.items()), None)
        reason = f": {len(merged.skipped)} images are broken. First: {first[0]}: {first[1]}" if first else ""
        raise UnsmoothError(f"there is no labelled pixel to score{reason}")
    return merged


def _ratio(part: Any, total: Any) -> Array:
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan: the class has no pixels
        return np.asarray(part / total)


def _mean(values: Array) -> float:
    return float(values[~np.isnan(values)].mean())

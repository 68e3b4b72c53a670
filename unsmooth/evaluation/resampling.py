"""Bootstrap over images of statistics that are functions of sums over images, such as accuracy and mIoU.

The same draws are used for all statistics of one set of images, so that their differences are paired by image.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
DRAWS = 2000


def draw_weights(images: int, draws: int = DRAWS, seed: int = 0) -> Array:
    """How often each image occurs in each bootstrap sample, (draws, images). The first row is the data itself."""
    generator = np.random.default_rng(seed)
    samples = generator.multinomial(images, np.full(images, 1 / images), size=draws)
    return np.concatenate([np.ones((1, images)), samples]).astype(np.float64)


def resampled_accuracy(weights: Array, correct: Array) -> Array:
    """Accuracy in each sample, from whether each image is correct, (images,)."""
    return np.asarray(weights @ correct.astype(np.float64) / weights.sum(1))


def resampled_miou(weights: Array, correct: Array, predicted: Array, labelled: Array) -> Array:
    """mIoU in each sample, from pixels per image and class, (images, classes) each.

    IoU = correct / (labelled + predicted − correct); classes that are neither labelled nor predicted are left out.
    """
    hits, guesses, pixels = (weights @ counts.astype(np.float64) for counts in (correct, predicted, labelled))
    union = pixels + guesses - hits
    there = union > 0
    iou = np.divide(hits, union, out=np.zeros_like(union), where=there)
    return np.asarray(iou.sum(1) / np.maximum(there.sum(1), 1))


def interval(values: Array) -> tuple[float, float]:
    """95 % percentile interval of resampled values, whose first is that of the data."""
    low, high = np.percentile(values[1:], [2.5, 97.5])
    return float(low), float(high)

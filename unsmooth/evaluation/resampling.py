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


def image_values(*counts: Array) -> Array:
    """A value per image, whose mean over images is the score and whose variance over images gives its standard error.

    Of accuracy, from whether each image is correct: 0 or 1. Of mIoU, from the counts of `resampled_miou`: its
    first-order expansion in the weights of the images (the infinitesimal jackknife),

        zᵢ = mIoU + n mean_c (hᵢ_c − IoU_c uᵢ_c) / Σⱼ uⱼ_c

    for n images, with h correct pixels and u that are labelled or predicted, by class c.
    """
    if len(counts) == 1:
        return np.asarray(counts[0].astype(np.float64))
    hits, guesses, pixels = (one.astype(np.float64) for one in counts)
    unions = pixels + guesses - hits
    union = unions.sum(0)
    hits, unions, union = (one[..., union > 0] for one in (hits, unions, union))
    iou = hits.sum(0) / union
    return np.asarray(iou.mean() + len(hits) * ((hits - iou * unions) / union).mean(1))


def interval(values: Array) -> tuple[float, float]:
    """95 % percentile interval of resampled values, whose first is that of the data."""
    low, high = np.percentile(values[1:], [2.5, 97.5])
    return float(low), float(high)

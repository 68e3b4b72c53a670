"""Paired difference of two arms with a bootstrap interval over seeds and images."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from unsmooth.results.trial import Difference

DRAWS = 10_000
LARGEST = 10**7  # array elements drawn at a time

Array = np.ndarray[Any, Any]


def paired_difference(own: Array, base: Array, confidence: float = 0.95, draws: int = DRAWS) -> Difference:
    """Difference in accuracy of two arms, paired by seed and image.

    The bootstrap resamples seeds and images together, with replacement, and keeps pairs together. With few seeds the
    plain bootstrap is too narrow, so deviations of seeds are scaled by √(n/(n−1)) and by the ratio of Student's t to
    the normal quantile. If only seeds vary, the interval is about as wide as the t interval (three quarters of it for
    two seeds). With a single seed the interval is over images only.

    Args:
        own: Whether each prediction is correct, an array (seeds, images) of booleans.
        base: The same for the arm to compare with.
        confidence: Confidence level of the interval.
        draws: Bootstrap samples.

    Example:
        >>> import numpy as np
        >>> base = np.array([[1, 1, 0, 0]] * 3, dtype=bool)
        >>> paired_difference(base, base).text
        'no difference shown (+0.0 to +0.0 points)'
    """
    difference = np.asarray(own, dtype=np.int8) - np.asarray(base, dtype=np.int8)
    seeds, images = difference.shape
    by_seed = difference.mean(axis=1)
    mean = float(by_seed.mean())
    # Images with the same differences in every seed are interchangeable: draw the number of images of each pattern.
    patterns, counts = np.unique(difference.T, axis=0, return_counts=True)
    generator = np.random.default_rng(0)
    seed_weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds
    chunk = max(1, LARGEST // len(counts))
    image_means = np.concatenate([
        generator.multinomial(images, counts / images, size=min(chunk, draws - start)) @ patterns / images
        for start in range(0, draws, chunk)
    ])  # fmt: skip
    drawn = (image_means * seed_weights).sum(axis=1)
    if seeds > 1:
        tail = 0.5 + confidence / 2
        stretch = np.sqrt(seeds / (seeds - 1)) * stats.t.ppf(tail, seeds - 1) / stats.norm.ppf(tail)
        drawn += (stretch - 1) * (seed_weights @ (by_seed - mean))
    low, high = map(float, np.quantile(drawn, [0.5 - confidence / 2, 0.5 + confidence / 2]))
    shown = low > 0 or high < 0
    interval = f"{_points(low)} to {_points(high)} points"
    text = f"{_points(mean)} points ({interval})" if shown else f"no difference shown ({interval})"
    return Difference(mean, low, high, by_seed.tolist(), shown, text)


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.1f}".replace("-", "−")

"""Paired difference of two arms with an interval over seeds and images, its p-value, and Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from unsmooth.results.trial import Difference

DRAWS = 10_000
LARGEST = 10**7  # array elements drawn at a time
WIDEST = 0.999  # p-values above are 1
BISECTIONS = 16  # p is known to a ten-thousandth of itself
FINE = 10_000  # images from which differences have two decimals

Array = np.ndarray[Any, Any]


def paired_difference(own: Array, base: Array, confidence: float = 0.95, draws: int = DRAWS) -> Difference:
    """Difference in accuracy of two arms, paired by seed and image.

    The bootstrap resamples seeds and images together, with replacement, and keeps pairs together. With few seeds the
    plain bootstrap is too narrow, so deviations of seeds are scaled by √(n/(n−1)) and by the ratio of Student's t to
    the normal quantile. The interval is never narrower than the t interval over seeds. With a single seed it is over
    images only.

    The p-value is the smallest α whose interval of level 1 − α excludes zero, and at least 2 / draws.

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
    bootstrap = _Bootstrap(difference, draws)
    low, high = bootstrap.interval(1 - confidence)
    shown = low > 0 or high < 0
    digits = 2 if difference.shape[1] >= FINE else 1
    interval = f"{points(low, digits)} to {points(high, digits)} points"
    text = f"{points(bootstrap.mean, digits)} points ({interval})" if shown else f"no difference shown ({interval})"
    return Difference(
        bootstrap.mean, low, high, bootstrap.by_seed.tolist(), shown, text, p=bootstrap.p_value(1 - confidence, shown)
    )


class _Bootstrap:
    """Draws of the mean difference, from which intervals of any level are read.

    Args:
        difference: −1, 0 or 1 for each seed and image.
        draws: Bootstrap samples.
    """

    def __init__(self, difference: Array, draws: int) -> None:
        seeds, images = difference.shape
        self.seeds, self.draws = seeds, draws
        self.by_seed = difference.mean(axis=1)
        self.mean = float(self.by_seed.mean())
        # Images with the same differences in every seed are interchangeable: draw the number of images of each pattern.
        patterns, counts = np.unique(difference.T, axis=0, return_counts=True)
        generator = np.random.default_rng(0)
        weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds
        chunk = max(1, LARGEST // len(counts))
        image_means = np.concatenate([
            generator.multinomial(images, counts / images, size=min(chunk, draws - start)) @ patterns / images
            for start in range(0, draws, chunk)
        ])  # fmt: skip
        self.drawn = (image_means * weights).sum(axis=1)
        self.deviations = weights @ (self.by_seed - self.mean)

    def interval(self, alpha: float) -> tuple[float, float]:
        """The interval of level 1 − alpha."""
        if self.seeds == 1:
            low, high = np.quantile(self.drawn, [alpha / 2, 1 - alpha / 2])
            return float(low), float(high)
        t = stdtrit(self.seeds - 1, 1 - alpha / 2)
        stretch = np.sqrt(self.seeds / (self.seeds - 1)) * t / ndtri(1 - alpha / 2)
        low, high = np.quantile(self.drawn + (stretch - 1) * self.deviations, [alpha / 2, 1 - alpha / 2])
        half = t * self.by_seed.std(ddof=1) / np.sqrt(self.seeds)
        return min(float(low), self.mean - float(half)), max(float(high), self.mean + float(half))

    def p_value(self, alpha: float, shown: bool) -> float:
        """The smallest alpha whose interval excludes zero, by bisection; `shown` says whether that of `alpha` does."""
        least = 2 / self.draws
        low, high = (least, alpha) if shown else (alpha, WIDEST)
        if self._excludes_zero(low) and shown:
            return min(low, alpha)
        if not shown and not self._excludes_zero(high):
            return 1.0
        for _ in range(BISECTIONS):
            middle = float(np.sqrt(low * high))
            low, high = (low, middle) if self._excludes_zero(middle) else (middle, high)
        return high

    def _excludes_zero(self, alpha: float) -> bool:
        low, high = self.interval(alpha)
        return low > 0 or high < 0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p-values: those at most α keep the probability of any false difference at most α.

    The smallest of m p-values is multiplied by m, the next by m − 1, and so on; a corrected value is at least the one
    before it, and at most 1 (Holm, Scandinavian Journal of Statistics 1979).

    Args:
        p_values: One p-value per comparison.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def points(fraction: float, digits: int = 1) -> str:
    """A difference of fractions in points, with its sign."""
    return f"{100 * fraction:+.{digits}f}".replace("-", "−")

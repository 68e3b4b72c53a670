"""95 % intervals of accuracies and of their paired differences."""

from __future__ import annotations

import math

Z = 1.959963984540054  # 97.5 % quantile of the normal distribution


def wilson_interval(correct: int, images: int) -> tuple[float, float]:
    """Wilson score interval of an accuracy (Wilson 1927)."""
    from scipy.stats import binomtest

    interval = binomtest(correct, images).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def paired_interval(won: float, lost: float, images: int) -> tuple[float, float]:
    """Interval of the difference of two accuracies on the same images (Agresti and Min 2005).

    Args:
        won: Number of images that only the first gets right.
        lost: Number of images that only the second gets right.
        images: Number of images.

    Half an image is added to each of the four outcomes; then the variance of a mean of −1, 0 and 1 gives the interval.
    """
    n = images + 2
    gain, loss = (won + 0.5) / n, (lost + 0.5) / n
    half = Z * math.sqrt((gain + loss - (gain - loss) ** 2) / n)
    return max(-1.0, gain - loss - half), min(1.0, gain - loss + half)

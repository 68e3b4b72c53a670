"""Paired difference of two arms with an interval over seeds and images, its p-value, and Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

from unsmooth.report.trial_values import difference_text
from unsmooth.results.trial import Difference

FINE = 10_000  # images from which differences have two decimals

Array = np.ndarray[Any, Any]


def paired_difference(own: Array, base: Array, confidence: float = 0.95) -> Difference:
    """Difference in accuracy, or of another mean over images, of two arms, paired by seed and image.

    The interval holds for new seeds and new images. Seeds s and images i are crossed random effects: the difference
    d(s, i) ∈ {−1, 0, 1} has a variance over seeds, one over images, and one of both, which the mean squares of a
    two-way analysis of variance estimate. The variance of the mean is

        (MS_seeds + max(MS_images − MS_rest, 0)) / (n M),   n seeds, M images

    and Student's t has the degrees of freedom of Hillis (Statistics in Medicine 2007). Studies of several readers and
    cases use the same interval. It is never narrower than the t interval over seeds alone, which the degrees of freedom
    would allow. With a single seed it is over images only.

    The p-value is the smallest α whose interval of level 1 − α excludes zero.

    Args:
        own: Whether each prediction is correct, an array (seeds, images) of booleans, or any value per image whose mean
            is a score, such as those of `unsmooth.evaluation.resampling.image_values`.
        base: The same for the arm to compare with.
        confidence: Confidence level of the interval.

    Example:
        >>> import numpy as np
        >>> base = np.array([[1, 1, 0, 0]] * 3, dtype=bool)
        >>> paired_difference(base, base).text
        '+0.0 points (+0.0 to +0.0 points), no difference shown'
    """
    difference = np.asarray(own, dtype=np.float64) - np.asarray(base, dtype=np.float64)
    mean, by_seed = float(difference.mean()), difference.mean(axis=1)
    errors = standard_errors(difference)
    half = max(error.half_width(confidence) for error in errors)
    low, high = mean - half, mean + half
    shown = low > 0 or high < 0
    digits = 2 if difference.shape[1] >= FINE else 1
    text = difference_text(mean, low, high, shown, digits)
    return Difference(mean, low, high, by_seed.tolist(), shown, text, p=max(error.p_value(mean) for error in errors))


@dataclass(frozen=True)
class StandardError:
    """Standard error of a mean difference, and the degrees of freedom of its estimate."""

    value: float
    freedom: float

    def half_width(self, confidence: float) -> float:
        """Half the width of the t interval."""
        return float(stdtrit(self.freedom, 0.5 + confidence / 2)) * self.value

    def p_value(self, mean: float) -> float:
        """Two-sided p-value of a mean difference of zero."""
        if self.value == 0:
            return 1.0 if mean == 0 else 0.0
        return float(2 * stdtr(self.freedom, -abs(mean) / self.value))


def standard_errors(difference: Array) -> list[StandardError]:
    """Standard errors of the mean of an array (seeds, images): over seeds and images, and over seeds alone."""
    seeds, images = difference.shape
    if seeds == 1:
        return [StandardError(float(difference.std(ddof=1)) / sqrt(images) if images > 1 else 0.0, max(1, images - 1))]
    mean, by_seed, by_image = difference.mean(), difference.mean(axis=1), difference.mean(axis=0)
    of_seeds = images * float(by_seed.var(ddof=1))
    rest = difference - by_seed[:, None] - by_image + mean
    of_images = of_rest = 0.0
    if images > 1:
        of_images = seeds * float(by_image.var(ddof=1))
        of_rest = float((rest**2).sum()) / ((seeds - 1) * (images - 1))
    total = of_seeds + max(of_images - of_rest, 0.0)
    freedom = inf if of_seeds == 0 else (seeds - 1) * (total / of_seeds) ** 2
    return [
        StandardError(sqrt(total / (seeds * images)), freedom),
        StandardError(sqrt(of_seeds / (seeds * images)), seeds - 1),
    ]


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

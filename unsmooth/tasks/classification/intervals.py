"""Confidence intervals of a share."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

from unsmooth.errors import UnsmoothError


def wilson(successes: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share: all p with |successes/total − p| ≤ z √(p (1 − p) / total)."""
    if not 0 <= successes <= total or total < 1:
        raise UnsmoothError(f"a share needs 0 ≤ successes ≤ total and total ≥ 1, not {successes} of {total}")
    if not 0 < confidence < 1:
        raise UnsmoothError(f"confidence must be above 0 and below 1, not {confidence}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = successes / total, z * z / total
    middle = (share + weight / 2) / (1 + weight)
    half = z * sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    # At none and at all, one end is 0 or 1 but for rounding.
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == total else middle + half)

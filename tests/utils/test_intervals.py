"""Intervals of accuracies: against their equations, against weighted moments, and by how often they cover the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from unsmooth.utils.intervals import paired_interval, wilson_interval


@pytest.mark.parametrize("images", [1, 2, 7, 100, 50_000])
def test_the_ends_of_the_wilson_interval_are_rejected_by_the_score_test_at_95_per_cent(images: int) -> None:
    for correct in {0, 1, images // 3, images - 1, images}:
        share, (low, high) = correct / images, wilson_interval(correct, images)
        assert 0 <= low <= share <= high <= 1 and low < high
        for p in (low, high):
            assert (share - p) ** 2 == pytest.approx(norm.ppf(0.975) ** 2 * p * (1 - p) / images, abs=1e-12)
        assert (low == 0) == (correct == 0) and (high == 1) == (correct == images)


@pytest.mark.parametrize(("won", "lost", "images"), [(0, 0, 4), (3, 10, 40), (0, 25, 25), (130, 110, 5000)])
def test_the_paired_interval_is_that_of_half_an_image_more_in_each_outcome(won: int, lost: int, images: int) -> None:
    outcomes = np.array([1.0, -1.0, 0.0, 0.0])  # only the first is right, only the second, both, none
    weights = np.array([won, lost, images - won - lost, 0]) + 0.5
    mean = np.average(outcomes, weights=weights)
    variance = np.average((outcomes - mean) ** 2, weights=weights)
    half = norm.ppf(0.975) * np.sqrt(variance / weights.sum())
    wanted = max(mean - half, -1), min(mean + half, 1)
    assert paired_interval(won, lost, images) == pytest.approx(wanted)
    low, high = paired_interval(lost, won, images)
    assert (-high, -low) == pytest.approx(wanted)


@pytest.mark.parametrize("shares", [(0.05, 0.05), (0.3, 0.1), (0.01, 0.2)])
def test_the_paired_interval_covers_the_difference(shares: tuple[float, float]) -> None:
    generator, images, difference = np.random.default_rng(0), 60, shares[0] - shares[1]
    counts = generator.multinomial(images, [*shares, 1 - sum(shares)], size=2000)
    covered = 0
    for won, lost, _ in counts:
        low, high = paired_interval(won, lost, images)
        covered += low <= difference <= high
    assert covered / 2000 > 0.93

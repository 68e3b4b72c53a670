"""Intervals and p-values of differences: against plain references, and by how often they are right."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unsmooth.trials.statistics import holm, paired_difference


def correct(chance, seeds, images, base, effect=0.0, seed_sd=0.0):
    """Two arms on the same images: each image has its own difficulty, each run its own luck."""
    difficulty = chance.normal(0, 1.0, images)
    arms = []
    for shift in (effect, 0.0):
        luck = chance.normal(0, seed_sd, (seeds, 1))
        p = np.clip(base + shift + luck + 0.15 * difficulty, 0.02, 0.98)
        arms.append(chance.random((seeds, images)) < p)
    return arms


def test_one_seed_is_the_t_interval_over_images():
    ours, base = correct(np.random.default_rng(1), 1, 500, 0.6, 0.05)
    difference = paired_difference(ours, base)
    d = ours[0].astype(float) - base[0]
    expected = stats.ttest_1samp(d, 0).confidence_interval(0.95)
    assert difference.mean == pytest.approx(d.mean())
    assert (difference.low, difference.high) == pytest.approx((expected.low, expected.high))


def variance_components(difference):
    """Seeds, images and rest, by the definition of each mean square as a sum over all cells."""
    seeds, images = difference.shape
    mean = difference.mean()
    of_seeds = sum((difference[s].mean() - mean) ** 2 for s in range(seeds) for _ in range(images)) / (seeds - 1)
    of_images = sum((difference[:, i].mean() - mean) ** 2 for _ in range(seeds) for i in range(images)) / (images - 1)
    rest = sum(
        (difference[s, i] - difference[s].mean() - difference[:, i].mean() + mean) ** 2
        for s in range(seeds)
        for i in range(images)
    ) / ((seeds - 1) * (images - 1))
    return of_seeds, of_images, rest


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 5), st.integers(3, 30), st.integers(0, 10_000))
def test_the_interval_is_that_of_hillis_or_of_seeds_alone(seeds, images, number):
    ours, base = correct(np.random.default_rng(number), seeds, images, 0.5, 0.1, 0.1)
    difference = paired_difference(ours, base)
    of_seeds, of_images, rest = variance_components(ours.astype(float) - base)
    numerator = of_seeds + max(of_images - rest, 0)
    if of_seeds > 0:
        freedom = numerator**2 / (of_seeds**2 / (seeds - 1))
        half = max(
            stats.t.ppf(0.975, freedom) * np.sqrt(numerator / (seeds * images)),
            stats.t.ppf(0.975, seeds - 1) * np.std(difference.by_seed, ddof=1) / np.sqrt(seeds),
        )
        assert (difference.low, difference.high) == pytest.approx((difference.mean - half, difference.mean + half))


def test_images_alike_in_all_seeds_do_not_count_as_more_images():
    ours, base = correct(np.random.default_rng(2), 1, 400, 0.6, 0.05)
    once = paired_difference(ours, base)
    four = paired_difference(np.repeat(ours, 4, axis=0), np.repeat(base, 4, axis=0))
    assert four.high - four.low == pytest.approx(once.high - once.low, rel=0.01)


@pytest.mark.parametrize(("seeds", "seed_sd", "shared"), [(3, 0.0, 0), (5, 0.0, 0), (3, 0.03, 0), (5, 0.02, 0.3)])
def test_the_interval_covers_a_difference_as_often_as_it_says(seeds, seed_sd, shared):
    """`shared`: the share of images on which the arms differ in the same way in every seed."""
    chance, trials, hits = np.random.default_rng(seeds), 1000, 0
    for _ in range(trials):
        ours, base = correct(chance, seeds, 400, 0.5, 0.04, seed_sd)
        alike = chance.random(400) < shared
        ours[:, alike], base[:, alike] = (
            draw < p for draw, p in zip(chance.random((2, 1, alike.sum())), (0.54, 0.5), strict=True)
        )
        difference = paired_difference(ours, base)
        hits += difference.low <= 0.04 <= difference.high
    assert 0.93 <= hits / trials <= 0.985  # the error of 1000 trials is 0.007


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(2, 60), st.integers(0, 10_000))
def test_an_interval_holds_its_mean_and_turns_round(seeds, images, number):
    chance = np.random.default_rng(number)
    ours, base = chance.random((2, seeds, images)) < 0.5
    one, other = paired_difference(ours, base), paired_difference(base, ours)
    assert one.low <= one.mean <= one.high or np.isclose(one.low, one.high)
    assert one.mean == pytest.approx(-other.mean)
    assert len(one.by_seed) == seeds
    same = paired_difference(ours, ours)
    assert (same.mean, same.low, same.high, same.shown) == (0, 0, 0, False)


def test_words():
    chance = np.random.default_rng(0)
    base = chance.random((3, 2000)) < 0.5
    better = base | (chance.random((3, 2000)) < 0.2)
    difference = paired_difference(better, base)
    assert difference.shown and difference.text.startswith("+") and "points (" in difference.text
    assert paired_difference(base, better).text.startswith("−")
    text = paired_difference(base, chance.random((3, 2000)) < 0.5).text
    assert " points (−" in text and text.endswith(" points), no difference shown")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(20, 80), st.floats(0, 0.4), st.integers(0, 10_000))
def test_p_is_the_level_at_which_the_interval_touches_zero(seeds, images, effect, number):
    chance = np.random.default_rng(number)
    ours, base = correct(chance, seeds, images, 0.4, effect, 0.02)
    difference = paired_difference(ours, base)
    assert difference.shown == (difference.p <= 0.05)
    for factor, shown in ((0.98, False), (1.02, True)):
        if 1e-9 < factor * difference.p < 1:  # smaller levels are not resolved
            assert paired_difference(ours, base, 1 - factor * difference.p).shown == shown
    assert paired_difference(ours, ours).p == 1


def test_p_is_that_of_the_t_test_if_only_seeds_vary():
    by_seed = np.array([0.2, 0.5, 0.1, 0.3, 0.6])
    base = np.zeros((5, 2000), dtype=bool)
    ours = np.arange(2000) < (by_seed[:, None] * 2000)
    # Images vary little beside seeds.
    assert paired_difference(ours, base).p == pytest.approx(stats.ttest_1samp(by_seed, 0).pvalue, rel=0.05)


def closed_testing(p_values):
    """Holm from its other definition: a hypothesis is rejected if Bonferroni rejects every set that contains it."""
    everything = range(len(p_values))
    sets = [s for size in everything for s in combinations(everything, size + 1)]
    return [max(min(1.0, len(s) * min(p_values[i] for i in s)) for s in sets if j in s) for j in everything]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_closed_testing_with_bonferroni(p_values):
    assert holm(p_values) == pytest.approx(closed_testing(p_values))


def test_holm_keeps_the_rate_of_any_false_difference():
    """Five arms without effect against one baseline: some interval excludes zero often, after Holm in 5 % of trials."""
    chance, trials = np.random.default_rng(3), 2000
    plain = corrected = 0
    for _ in range(trials):
        # Only seeds vary, which is where the interval is least conservative.
        share = np.clip(np.rint(40 * (0.5 + chance.normal(0, 0.1, (6, 5)))), 0, 40)
        runs = np.arange(40) < share[..., None]
        p_values = [paired_difference(arm, runs[0]).p for arm in runs[1:]]
        plain += min(p_values) <= 0.05
        corrected += min(holm(p_values)) <= 0.05
    assert plain / trials > 0.08  # the plain interval is not enough
    assert corrected / trials <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / trials)

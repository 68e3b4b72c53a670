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


def test_one_seed_is_the_paired_bootstrap_over_images():
    chance = np.random.default_rng(1)
    ours, base = correct(chance, 1, 500, 0.6, 0.05)
    difference = paired_difference(ours, base)
    d = ours[0].astype(float) - base[0]
    draws = [d[chance.integers(0, 500, 500)].mean() for _ in range(10_000)]
    assert difference.mean == pytest.approx(d.mean())
    assert (difference.low, difference.high) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=3e-3)


def test_seeds_alone_give_the_t_interval():
    # Every image of a run is right or wrong together with the others: only seeds vary.
    by_seed = np.array([0.02, 0.05, 0.01, 0.03, 0.06, 0.02, 0.04, 0.03])
    images = 100
    base = np.zeros((8, images), dtype=bool)
    ours = np.arange(images) < (by_seed[:, None] * images)
    difference = paired_difference(ours, base)
    half = stats.t.ppf(0.975, 7) * by_seed.std(ddof=1) / np.sqrt(8)
    seeds_only = (by_seed.mean() - half, by_seed.mean() + half)
    assert difference.low <= seeds_only[0] + 0.003
    assert difference.high >= seeds_only[1] - 0.003


@pytest.mark.parametrize(("seeds", "seed_sd"), [(3, 0.0), (3, 0.03), (5, 0.02)])
def test_the_interval_covers_a_difference_as_often_as_it_says(seeds, seed_sd):
    chance = np.random.default_rng(seeds)
    hits = 0
    for _ in range(200):
        ours, base = correct(chance, seeds, 400, 0.5, 0.04, seed_sd)
        difference = paired_difference(ours, base, draws=1000)
        hits += difference.low <= 0.04 <= difference.high
    assert hits / 200 >= 0.92  # 0.95 within the error of 200 trials; more is allowed: it errs on the wide side


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(2, 60), st.integers(0, 10_000))
def test_an_interval_holds_its_mean_and_turns_round(seeds, images, number):
    chance = np.random.default_rng(number)
    ours, base = chance.random((2, seeds, images)) < 0.5
    one, other = paired_difference(ours, base, draws=400), paired_difference(base, ours, draws=400)
    assert one.low <= one.mean <= one.high or np.isclose(one.low, one.high)
    assert one.mean == pytest.approx(-other.mean)
    assert len(one.by_seed) == seeds
    same = paired_difference(ours, ours, draws=100)
    assert (same.mean, same.low, same.high, same.shown) == (0, 0, 0, False)


def test_words():
    chance = np.random.default_rng(0)
    base = chance.random((3, 2000)) < 0.5
    better = base | (chance.random((3, 2000)) < 0.2)
    difference = paired_difference(better, base)
    assert difference.shown and difference.text.startswith("+") and "points (" in difference.text
    assert paired_difference(base, better).text.startswith("−")
    assert paired_difference(base, chance.random((3, 2000)) < 0.5).text.startswith("no difference shown (−")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(20, 80), st.floats(0, 0.4), st.integers(0, 10_000))
def test_p_is_the_level_at_which_the_interval_touches_zero(seeds, images, effect, number):
    chance = np.random.default_rng(number)
    ours, base = correct(chance, seeds, images, 0.4, effect, 0.02)
    difference = paired_difference(ours, base, draws=1000)
    assert difference.shown == (difference.p <= 0.05)
    for factor, shown in ((0.98, False), (1.02, True)):
        if 0.002 < factor * difference.p < 0.99:  # 2 / draws, below which p is not resolved
            assert paired_difference(ours, base, 1 - factor * difference.p, draws=1000).shown == shown
    assert paired_difference(ours, ours, draws=100).p == 1


def test_p_is_that_of_the_t_test_if_only_seeds_vary():
    by_seed = np.array([0.2, 0.5, 0.1, 0.3, 0.6])
    base = np.zeros((5, 2000), dtype=bool)
    ours = np.arange(2000) < (by_seed[:, None] * 2000)
    # Images vary little beside seeds, and the interval is never narrower than Student's.
    expected = stats.ttest_1samp(by_seed, 0).pvalue
    assert expected <= paired_difference(ours, base).p < 1.25 * expected


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
    chance, trials = np.random.default_rng(3), 200
    plain = corrected = 0
    for _ in range(trials):
        # Only seeds vary, which is where the interval is least conservative.
        share = np.clip(np.rint(40 * (0.5 + chance.normal(0, 0.1, (6, 5)))), 0, 40)
        runs = np.arange(40) < share[..., None]
        p_values = [paired_difference(arm, runs[0], draws=600).p for arm in runs[1:]]
        plain += min(p_values) <= 0.05
        corrected += min(holm(p_values)) <= 0.05
    assert plain / trials > 0.08  # the plain interval is not enough
    assert corrected / trials <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / trials)

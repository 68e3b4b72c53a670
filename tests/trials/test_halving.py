"""Successive halving: fewer candidates for longer, never beyond the budget."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from unsmooth.trials.halving import PlannedRung, keep_best, plan_rungs


def test_rungs_shrink_and_grow() -> None:
    assert plan_rungs(4, 32, 16, 2, 1) == [PlannedRung(4, 4), PlannedRung(2, 8)]
    assert plan_rungs(9, 27, 30, 3, 1) == [PlannedRung(9, 1), PlannedRung(3, 4)]
    assert plan_rungs(2, 100, 16, 2, 1) == [PlannedRung(2, 16)], "no run is longer than the recipe"


def test_there_is_nothing_to_choose_or_nothing_to_spend() -> None:
    assert plan_rungs(1, 100, 10, 2, 1) == plan_rungs(0, 100, 10, 2, 0) == []
    assert plan_rungs(3, 100, 10, 2, 3) == []
    assert plan_rungs(6, 1, 10, 2, 1) == [], "not one epoch for two candidates"


def test_candidates_that_the_budget_does_not_suffice_for_are_left_out() -> None:
    assert plan_rungs(6, 4, 10, 2, 1)[0] == PlannedRung(2, 2)


@settings(max_examples=50, derandomize=True)
@given(n=st.integers(1, 12), left=st.integers(0, 200), epochs=st.integers(1, 30), factor=st.integers(2, 4),
       finalists=st.integers(1, 3))  # fmt: skip
def test_the_budget_is_respected(n: int, left: int, epochs: int, factor: int, finalists: int) -> None:
    rungs = plan_rungs(n, left, epochs, factor, finalists)
    assert sum(rung.candidates * rung.epochs for rung in rungs) <= left
    assert all(1 <= rung.epochs <= epochs for rung in rungs)
    for early, late in itertools.pairwise(rungs):
        assert late.candidates == max(finalists, math.ceil(early.candidates / factor)) < early.candidates
        assert late.epochs >= early.epochs


def test_the_best_are_kept_and_failed_runs_are_last() -> None:
    assert keep_best([0.3, None, 0.5, 0.5], 2) == [2, 3]
    assert keep_best([None, 0.0], 2) == [1, 0]

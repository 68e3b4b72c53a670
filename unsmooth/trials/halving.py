"""Successive halving on a stated budget: how many candidates are trained for how many epochs.

Every rung has the same share of the epochs. A rung trains all its candidates for the same number of epochs and keeps
the best 1/η of them, rounded up, so that later rungs train fewer candidates for longer (Jamieson and Talwalkar,
AISTATS 2016). Runs start anew in every rung, with a complete learning-rate schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PlannedRung:
    """Candidates of a rung, and epochs of each."""

    candidates: int
    epochs: int


def plan_rungs(candidates: int, left: int, epochs: int, factor: int, finalists: int) -> list[PlannedRung]:
    """The rungs from `candidates` to `finalists`, in at most `left` epochs in all.

    If the budget does not suffice for one epoch of every candidate, the last ones are left out.

    Args:
        candidates: Number of candidates.
        left: Epochs of training for all rungs.
        epochs: Most epochs of one run.
        factor: η, the reduction of candidates from rung to rung.
        finalists: Candidates that are left at the end.

    Returns:
        The rungs; empty if no choice is needed, or none can be afforded.

    Example:
        >>> plan_rungs(4, 32, 16, 2, 1)
        [PlannedRung(candidates=4, epochs=4), PlannedRung(candidates=2, epochs=8)]
    """
    while candidates > finalists:
        sizes, size = [], candidates
        while size > finalists:
            sizes.append(size)
            size = max(finalists, math.ceil(size / factor))
        rungs = [PlannedRung(size, min(epochs, left // (len(sizes) * size))) for size in sizes]
        if rungs[0].epochs >= 1:
            return rungs
        candidates -= 1
    return []


def keep_best(scores: Sequence[float | None], count: int) -> list[int]:
    """Positions of the `count` highest scores, best first. Failed runs are last; of equals, the first is better."""
    order = sorted(range(len(scores)), key=lambda i: -math.inf if (s := scores[i]) is None else s, reverse=True)
    return order[:count]

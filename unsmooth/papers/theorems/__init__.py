"""Theorems as experiments: predictions next to values measured on random inputs, one file per paper.

Each file has a table THEOREMS: the name in a data file (`theorem = "..."`) and the function that runs it. A function
takes `small` (few draws) and returns one row per kind of input, with curves.
"""

from __future__ import annotations

from unsmooth.errors import unknown
from unsmooth.papers.catalogue import Experiment
from unsmooth.papers.request import RunRequest
from unsmooth.papers.theorems import (
    adder_attention,
    always_skip_attention,
    anti_oversmoothing,
    augmented_shortcuts,
    context_broadcasting,
)
from unsmooth.papers.theorems.draws import Theorem
from unsmooth.results.reproduction import GroupResult

THEOREMS: dict[str, Theorem] = {
    **adder_attention.THEOREMS,
    **always_skip_attention.THEOREMS,
    **anti_oversmoothing.THEOREMS,
    **augmented_shortcuts.THEOREMS,
    **context_broadcasting.THEOREMS,
}


def run_theorem(experiment: Experiment, request: RunRequest) -> tuple[list[GroupResult], str]:
    if experiment.theorem not in THEOREMS:
        raise unknown("theorem", experiment.theorem, THEOREMS)
    rows = THEOREMS[experiment.theorem](request.small)
    return [GroupResult(name=experiment.title, rows=rows)], "random numbers"

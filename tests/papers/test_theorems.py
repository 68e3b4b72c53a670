"""Theorems run on random numbers: which of their printed claims hold, and which do not."""

from __future__ import annotations

import pytest

from unsmooth.papers.catalogue import open_experiment
from unsmooth.papers.claims import check_claims
from unsmooth.papers.theorems import THEOREMS
from unsmooth.results.reproduction import GroupResult

YES, NO, OPEN = "confirmed", "contradicted", "undecided"


def states(name: str) -> dict[str, list[str]]:
    """The state of each claim by the start of its text, one per row."""
    experiment = open_experiment(name)
    group = GroupResult(name="g", rows=THEOREMS[experiment.theorem](True))
    return {result.text: [check.state for check in result.checks] for result in check_claims(experiment, [group])}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "augmented_shortcuts/recursion",  # one α for all layers; α of each layer
            {
                "Eq. S.5 bounds": [YES, NO],
                "Eq. S.8 bounds": [YES, NO],
                "Eq. S.5 with the largest": [YES, YES],
                "Eq. S.8 with the largest": [YES, YES],
            },
        ),
        ("always_skip_attention/proposition4_1", {"Eq. 10": [YES], "the bound C κ(X)³": [YES]}),
        (
            "always_skip_attention/constant",  # normal, uniform, a head, orthogonal
            {"ln C falls": [NO, NO, NO, OPEN], "ln C ends close to 0": [NO, NO, NO, YES]},
        ),
        (
            "always_skip_attention/proposition4_2",  # 49 × 16, the same with C = 1, 64 × 64, 197 × 192
            {
                "σ_min < 1 < σ_max": [NO, NO, NO, NO],
                "κ(XM + X) ≤ κ(X)κ(M + I)": [YES, YES, YES, YES],
                "the bound without the skip": [YES, YES, YES, YES],
                "the bound with the skip (Eq. 17": [YES, NO, YES, YES],
                "Cσ_max³ + σ_max is close": [YES, NO, YES, YES],
                "σ_min³ + σ_min is larger": [YES, YES, YES, YES],
                "the bound with the skip is far below": [NO, NO, YES, YES],
                "κ(X)κ(M + I) is below": [YES, NO, YES, YES],
            },
        ),
        (
            "always_skip_attention/convolution",  # one kernel, a kernel per channel
            {
                "the bound C_CD κ(X)": [YES, YES],
                "the bound of convolution": [YES, YES],
                "convolution is better": [YES, YES],
            },
        ),
    ],
)
def test_claims_of_theorems(name: str, expected: dict[str, list[str]]) -> None:
    found = states(name)
    assert len(found) == len(expected)
    for (text, state), (start, wanted) in zip(found.items(), expected.items(), strict=True):
        assert text.startswith(start)
        assert state == wanted, text


def test_the_degree_of_convolution_is_one_and_that_of_attention_three() -> None:
    row = THEOREMS["convolution_condition"](True)[0]
    tokens = THEOREMS["condition_cubed"](True)[0].curves["ln κ of the tokens"].mean
    for label, degree in (("its bound", 1), ("bound of attention", 3)):
        bound = row.curves[label].mean
        assert (bound[-1] - bound[0]) / (tokens[-1] - tokens[0]) == pytest.approx(degree)

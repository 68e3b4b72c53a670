"""Claims of the adder paper, on random maps and on what its figures are measured with."""

from __future__ import annotations

import pytest
import torch

from unsmooth.papers.catalogue import open_experiment
from unsmooth.papers.claims import check_claims
from unsmooth.papers.theorems import THEOREMS
from unsmooth.results.reproduction import ArmResult, GroupResult, MeasuredCurve

SEMIDEFINITE, SYMMETRIC, SOFTMAX = (
    "symmetric and semi-definite (L1 kernel)", "symmetric (normal logits)", "softmax of normal logits",
)  # fmt: skip


def states(name: str, rows: list[ArmResult]) -> dict[str, dict[str, str]]:
    """State by arm, for each claim."""
    results = check_claims(open_experiment(name), [GroupResult(name="g", rows=rows)])
    return {result.text: {check.arm: check.state for check in result.checks} for result in results}


def test_the_variances_of_theorem_1_are_confirmed() -> None:
    found = states("adder_attention/theorem1", THEOREMS["score_variance"](True))
    assert [list(checks.values()) for checks in found.values()] == [["confirmed"], ["confirmed"]]


def test_proposition_1_is_confirmed_for_semidefinite_maps_and_not_for_all_symmetric_ones() -> None:
    rows = THEOREMS["identity_rank"](True)
    assert [row.name for row in rows] == [SEMIDEFINITE, SYMMETRIC, SOFTMAX]
    distances = [row.curves["distance to symmetric PSD"].mean for row in rows]
    assert max(distances[0]) < 1e-9
    assert min(*distances[1], *distances[2]) > 0.1
    found = states("adder_attention/proposition1", rows)
    assert len(found) == 6
    assert all(checks[SEMIDEFINITE] == "confirmed" for checks in found.values())
    for text, checks in found.items():
        # Assertion 1 needs no assumption. The other statements fail for some symmetric maps.
        assert checks[SYMMETRIC] == ("confirmed" if text.startswith("Assertion 1") else "contradicted"), text


def curve(*values: float) -> MeasuredCurve:
    return MeasuredCurve(by="block", mean=list(values), sd=[0.01] * len(values))


@pytest.mark.parametrize(("asymmetry", "state"), [(0.05, "confirmed"), (0.3, "contradicted"), (0.1, "undecided")])
def test_figure_2_is_about_the_asymmetry_of_the_adder_transformer(asymmetry: float, state: str) -> None:
    label = "asymmetry without the diagonal"
    rows = [ArmResult(name, "", {}, {label: curve(0.0, asymmetry)}) for name in ("plain", "adder")]
    (checks,) = states("adder_attention/figure2", rows).values()
    assert checks == {"adder": state}


def test_figure_2_shows_blocks_that_its_hosts_have() -> None:
    experiment = open_experiment("adder_attention/figure2")
    assert experiment.blocks == "1,6,11"
    (group,) = experiment.groups
    assert all("depth=12" in str(spec) for spec in group.specs(small=True))
    assert str(group.specs(small=False)[1]) == "deit_tiny_patch16_224+adder"


def test_the_rank_of_adder_maps_is_compared_with_that_of_plain_ones() -> None:
    ranks = {"plain": 30.0, "with identity": 40.0, "without identity": 5.0}
    rows = [ArmResult(name, "", {}, {"equivalent rank of maps": curve(r, r)}) for name, r in ranks.items()]
    assert [list(checks.values()) for checks in states("adder_attention/singular_values", rows).values()] == [
        ["confirmed"], ["confirmed"],
    ]  # fmt: skip
    rows[2].curves["equivalent rank of maps"] = curve(5.0, 35.0)
    lower, higher = states("adder_attention/singular_values", rows).values()
    assert lower == {"without identity": "contradicted"}
    assert higher == {"with identity": "confirmed"}


def test_the_variance_of_a_product_is_not_the_sum_of_three_variances() -> None:
    """The proof of Theorem 1: (q + k)², q² and k² are not independent. Their variances, 8, 2 and 2, would give 3."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 400_000, generator=generator, dtype=torch.float64)
    parts = [(q + k).square(), q.square(), k.square()]
    assert sum(float(part.var()) for part in parts) / 4 == pytest.approx(3, rel=0.03)
    assert float(((parts[0] - parts[1] - parts[2]) / 2).var()) == pytest.approx(1, rel=0.03)

"""Claims of the papers, checked on curves and metrics that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unsmooth.papers.catalogue import Claim, open_experiment
from unsmooth.papers.claims import check_claims
from unsmooth.results.reproduction import ArmResult, ClaimCheck, GroupResult, MeasuredCurve, MeasuredValue

YES, NO, OPEN = "confirmed", "contradicted", "undecided"


def curves(sd: float | None = None, **lines: list[float | None]) -> dict[str, MeasuredCurve]:
    return {label: MeasuredCurve(by="block", mean=mean, sd=[sd] * len(mean)) for label, mean in lines.items()}


def group_of(**arms: dict[str, MeasuredCurve]) -> GroupResult:
    return GroupResult(name="g", rows=[ArmResult(name, "", {}, lines) for name, lines in arms.items()])


def check(claim: Claim, group: GroupResult) -> list[ClaimCheck]:
    experiment = replace(open_experiment("anti_oversmoothing/figure11"), claims=[claim])
    (result,) = check_claims(experiment, [group])
    return result.checks


def state(claim: Claim, group: GroupResult) -> str:
    (only,) = check(claim, group)
    return only.state


@pytest.mark.parametrize(
    ("test", "than", "arm", "expected"),
    [
        ("rises", "", "a", YES),
        ("falls", "", "a", NO),
        ("falls", "", "b", YES),
        ("trends up", "", "long", YES),
        ("trends down", "", "long", NO),
        ("trends up", "", "noise", OPEN),
        ("ends above", "b", "a", YES),
        ("ends below", "b", "a", NO),
        ("stays below", "b", "a", NO),
        ("stays above", "y", "a", YES),
        ("stays below", "y", "a", NO),
        ("reaches above", "2.5", "a", YES),
        ("reaches above", "3", "a", OPEN),
        ("reaches above", "4", "a", NO),
        ("reaches above", "b", "a", YES),
        ("bounded by", "y", "a", NO),
        ("bounded by", "same", "a", YES),
        ("stays below", "same", "a", OPEN),
        ("ends below", "same", "a", OPEN),
        ("bounded by", "3", "a", YES),
        ("bounded by", "2.5", "a", NO),
        ("equals", "same", "a", YES),
        ("equals", "y", "a", NO),
    ],
)
def test_curves(test: str, than: str, arm: str, expected: str) -> None:
    group = group_of(
        a=curves(x=[1.0, None, 2.0, 3.0], y=[0.0, None, 1.0, 2.0], same=[1.0, 5.0, 2.0, 3.0]),
        b=curves(x=[2.0, 1.0, 1.0, 0.0]),
        long=curves(x=[0.0, 1.0, 3.0, 2.0, 4.0, 5.0, 6.0]),
        noise=curves(x=[0.0, 5.0, 1.0, 4.0, 2.0]),
    )
    claim = Claim(text="t", curve="x", arm=arm, test=test, than=than)
    assert check(claim, group) == [ClaimCheck(group="g", arm=arm, state=expected)]


def test_curves_closer_than_their_spread_decide_nothing() -> None:
    claim = Claim(text="t", curve="x", arm="a", test="ends above", than="b")
    for sd, expected in ((0.5, YES), (1.0, OPEN)):  # the difference of 1 against √2 times the spread
        assert state(claim, group_of(a=curves(sd, x=[0.0, 2.0]), b=curves(sd, x=[0.0, 1.0]))) == expected
    flat = group_of(a=curves(x=[1.0, 1.0, 1.0]))
    for test in ("rises", "falls", "trends up", "trends down"):
        assert state(Claim(text="t", curve="x", test=test), flat) == OPEN


def test_a_relation_at_every_block_is_contradicted_by_one_of_them() -> None:
    claim = Claim(text="t", curve="x", arm="a", test="stays above", than="b")
    group = group_of(a=curves(0.1, x=[5.0, 5.0, 0.0]), b=curves(0.1, x=[1.0, 5.0, 1.0]))
    assert state(claim, group) == NO
    group = group_of(a=curves(0.1, x=[5.0, 5.0, 5.0]), b=curves(0.1, x=[1.0, 5.0, 1.0]))
    assert state(claim, group) == OPEN  # one block is too close


def test_a_bound_must_hold_for_every_image_and_blocks_are_compared_with_themselves() -> None:
    ours = MeasuredCurve(by="block", mean=[1.0, 1.0], sd=[None] * 2, low=[0.5, 0.5], high=[1.5, 1.5])
    bound = MeasuredCurve(by="block", mean=[2.0, 2.0], sd=[None] * 2, low=[1.6, 1.4], high=[3.0, 3.0])
    group = group_of(a={"x": ours, "y": bound})
    claim = Claim(text="t", curve="x", test="bounded by", than="y")
    assert state(claim, group) == NO
    bound.low = [1.6, 1.5]
    assert state(claim, group) == YES
    group = group_of(a=curves(x=[0.0, None, 5.0], y=[None, 9.0, 6.0]))
    assert state(claim, group) == YES  # only block 2 has both


def test_a_claim_about_what_was_not_measured_has_no_checks() -> None:
    group = group_of(a=curves(x=[1.0]))
    for claim in (
        Claim(text="t", curve="x", test="rises"),
        Claim(text="t", curve="x", test="ends above", than="z"),
        Claim(text="t", metric="top1", test="higher than"),
    ):
        assert check(claim, group) == []


def measured(**interval: float | None) -> MeasuredValue:
    return MeasuredValue(None, None, measured=80.0, seeds=3, **interval)


@pytest.mark.parametrize(
    ("test", "interval", "expected"),
    [
        ("higher than", (0.1, 0.5, 0.9), YES),
        ("higher than", (-0.1, 0.5, 0.9), OPEN),
        ("higher than", (-0.9, -0.5, -0.1), NO),
        ("lower than", (-0.9, -0.5, -0.1), YES),
        ("equal to", (-0.1, 0.0, 0.1), YES),
        ("equal to", (-0.5, 0.0, 0.1), OPEN),
        ("equal to", (0.3, 0.4, 0.5), NO),
        ("not lower than", (0.3, 0.4, 0.5), YES),
        ("not lower than", (-0.1, 0.4, 0.5), YES),  # within the tolerance
        ("not lower than", (-0.5, 0.4, 0.5), OPEN),
        ("not lower than", (-0.9, -0.5, -0.3), NO),
        ("higher than", (None, 5.0, None), OPEN),  # one seed
    ],
)
def test_metrics_by_the_interval_of_the_difference(test: str, interval: tuple, expected: str) -> None:
    low, gain, high = interval
    rows = [
        ArmResult("plain", "", {"top1": measured()}, {}),
        ArmResult("treated", "", {"top1": measured(low=low, gain=gain, high=high)}, {}),
    ]
    claim = Claim(text="t", metric="top1", arm="treated", test=test, tolerance=0.2)
    assert state(claim, GroupResult(name="g", rows=rows)) == expected
    between = replace(claim, arm="treated", than="other")
    rows.append(ArmResult("other", "", {"top1": measured()}, {}))
    assert (
        state(between, GroupResult(name="g", rows=rows)) == OPEN
    )  # only differences to the first arm have an interval


def test_counts_are_compared_exactly() -> None:
    rows = [
        ArmResult(name, "", {"parameters": MeasuredValue(None, None, measured=value)}, {})
        for name, value in (("plain", 22.0), ("small", 22.1), ("large", 23.0))
    ]
    claim = Claim(text="t", metric="parameters", arm="large", test="higher than", than="small")
    assert state(claim, GroupResult(name="g", rows=rows)) == YES


def test_the_source_of_a_claim() -> None:
    assert Claim(text="t", lines="12").source == "printed, line 12"
    assert Claim(text="t", lines="12–14").source == "printed, lines 12–14"
    assert Claim(text="t", evidence="R").source == "our reading"

"""Checks the claims of a paper on measured curves and metrics: confirmed, contradicted, or undecided.

A claim is undecided if the measurement cannot tell: a difference in accuracy whose interval covers zero, or two curves
that are closer than their spread over images or seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from scipy import stats

from unsmooth.errors import unknown
from unsmooth.papers.catalogue import Claim, Experiment
from unsmooth.report.metrics import METRICS
from unsmooth.results.reproduction import ArmResult, ClaimCheck, ClaimResult, GroupResult, MeasuredCurve

State = Literal["confirmed", "contradicted", "undecided"]
Test = Callable[[Claim, GroupResult, ArmResult], State | None]
LEVEL = 0.05  # of the test for a trend
NUMBER = re.compile(r"-?[\d.]+")


def check_claims(experiment: Experiment, groups: Sequence[GroupResult]) -> list[ClaimResult]:
    """Check each claim for each group and arm. Claims about what was not measured have no checks."""
    return [
        ClaimResult(
            text=claim.text, source=claim.source, checks=[check for group in groups for check in _check(claim, group)]
        )
        for claim in experiment.claims
    ]


def _check(claim: Claim, group: GroupResult) -> list[ClaimCheck]:
    if claim.test not in TESTS:
        raise unknown("test of a claim", claim.test, TESTS)
    states = {row.name: TESTS[claim.test](claim, group, row) for row in group.rows if claim.arm in ("", row.name)}
    return [ClaimCheck(group=group.name, arm=arm, state=state) for arm, state in states.items() if state is not None]


def _verdict(signs: Sequence[int]) -> State | None:
    """Signs of comparisons (1: as claimed, −1: the opposite, 0: too close) as one state; None without any."""
    if not signs:
        return None
    if min(signs) < 0:
        return "contradicted"
    return "confirmed" if min(signs) > 0 else "undecided"


Point = tuple[float, float]  # mean and standard deviation


def _sign(a: Point, b: Point) -> int:
    """1 if a is above b by more than their spread, −1 if it is below, 0 if they are too close to tell."""
    spread = (a[1] ** 2 + b[1] ** 2) ** 0.5
    return 0 if abs(a[0] - b[0]) <= spread else (1 if a[0] > b[0] else -1)


def _points(curve: MeasuredCurve | None) -> dict[int, Point]:
    if curve is None:
        return {}
    values = zip(curve.mean, curve.sd, strict=True)
    return {i: (mean, sd or 0.0) for i, (mean, sd) in enumerate(values) if mean is not None}


def _other(claim: Claim, group: GroupResult, row: ArmResult) -> dict[int, Point]:
    """The curve to compare with: a number, another curve of the same arm, or the same curve of another arm."""
    if NUMBER.fullmatch(claim.than):
        return dict.fromkeys(_points(row.curves.get(claim.curve)), (float(claim.than), 0.0))
    return _points(_other_curve(claim, group, row))


def _other_curve(claim: Claim, group: GroupResult, row: ArmResult) -> MeasuredCurve | None:
    if claim.than in row.curves:
        return row.curves[claim.than]
    arm = next((other for other in group.rows if other.name == claim.than and other is not row), None)
    return None if arm is None else arm.curves.get(claim.curve)


def _from_first_to_last(direction: int) -> Test:
    """The last value of a curve against its first."""

    def test(claim: Claim, group: GroupResult, row: ArmResult) -> State | None:
        own = _points(row.curves.get(claim.curve))
        return _verdict([direction * _sign(own[max(own)], own[min(own)])]) if len(own) > 1 else None

    return test


def _trend(direction: int) -> Test:
    """The rank correlation of a curve with its position."""

    def test(claim: Claim, group: GroupResult, row: ArmResult) -> State | None:
        own = _points(row.curves.get(claim.curve))
        if len(own) < 3:
            return None
        means = [own[i][0] for i in sorted(own)]
        if len(set(means)) == 1:
            return "undecided"
        trend = stats.spearmanr(range(len(means)), means)
        sign = 0 if trend.pvalue > LEVEL else (1 if trend.statistic > 0 else -1)
        return _verdict([direction * sign])

    return test


def _compared(direction: int, last: bool) -> Test:
    """A curve against another one, at the last position or at every position."""

    def test(claim: Claim, group: GroupResult, row: ArmResult) -> State | None:
        own, other = _points(row.curves.get(claim.curve)), _other(claim, group, row)
        positions = sorted(set(own) & set(other))
        return _verdict([direction * _sign(own[i], other[i]) for i in (positions[-1:] if last else positions)])

    return test


def _reached(claim: Claim, group: GroupResult, row: ArmResult) -> State | None:
    """A curve that is above another one, or above a number, at one position at least."""
    own, other = _points(row.curves.get(claim.curve)), _other(claim, group, row)
    signs = [_sign(own[i], other[i]) for i in sorted(set(own) & set(other))]
    return _verdict([max(signs)]) if signs else None


def _bounded(claim: Claim, group: GroupResult, row: ArmResult) -> State | None:
    """The largest value over images against the smallest bound over images: a bound holds for each, or it fails."""
    own = _ends(row.curves.get(claim.curve), "high")
    number = dict.fromkeys(own, float(claim.than)) if NUMBER.fullmatch(claim.than) else None
    other = number if number is not None else _ends(_other_curve(claim, group, row), "low")
    return _verdict([1 if own[i] <= other[i] else -1 for i in sorted(set(own) & set(other))])


def _ends(curve: MeasuredCurve | None, end: str) -> dict[int, float]:
    if curve is None:
        return {}
    values = zip(curve.mean, getattr(curve, end) or curve.mean, strict=True)
    return {i: mean if value is None else value for i, (mean, value) in enumerate(values) if mean is not None}


def _equals(claim: Claim, group: GroupResult, row: ArmResult) -> State | None:
    """Two curves that agree within a relative tolerance, at every position."""
    own, other = _points(row.curves.get(claim.curve)), _other(claim, group, row)
    near = [abs(own[i][0] - other[i][0]) <= claim.tolerance * abs(other[i][0]) for i in sorted(set(own) & set(other))]
    return _verdict([1 if close else -1 for close in near])


def _metric(direction: int) -> Test:
    """A metric against that of another arm, by the interval of the difference; "equal to": within the tolerance."""

    def test(claim: Claim, group: GroupResult, row: ArmResult) -> State | None:
        interval = _interval(claim, group, row)
        if interval is None:
            return None
        low, _gain, high = interval
        if direction:
            return _verdict([direction * (1 if low > 0 else -1 if high < 0 else 0)])
        if low > claim.tolerance or high < -claim.tolerance:
            return "contradicted"
        return "confirmed" if -claim.tolerance <= low and high <= claim.tolerance else "undecided"

    return test


def _not_lower(claim: Claim, group: GroupResult, row: ArmResult) -> State | None:
    """A metric that may gain, but must not lose more than the tolerance."""
    interval = _interval(claim, group, row)
    if interval is None:
        return None
    low, _, high = interval
    return _verdict([1 if low >= -claim.tolerance else -1 if high < -claim.tolerance else 0])


def _interval(claim: Claim, group: GroupResult, row: ArmResult) -> tuple[float, float, float] | None:
    """Low end, mean and high end of the difference to another arm.

    Only differences to the first arm have an interval. Those between two other arms are never more than undecided.
    """
    value = row.values.get(claim.metric)
    if value is None or value.measured is None or claim.than == row.name:
        return None
    neutral = 1.0 if METRICS[claim.metric].comparison == "ratio" else 0.0
    if claim.than in ("", group.rows[0].name):
        if value.gain is None or row is group.rows[0]:
            return None
        if value.low is None or value.high is None:
            return (value.gain - neutral,) * 3 if value.seeds is None else (float("-inf"), 0.0, float("inf"))
        return value.low - neutral, value.gain - neutral, value.high - neutral
    other = next((arm.values.get(claim.metric) for arm in group.rows if arm.name == claim.than), None)
    if other is None or other.measured is None:
        return None
    difference = value.measured - other.measured
    exact = value.seeds is None and other.seeds is None
    return (difference,) * 3 if exact else (float("-inf"), difference, float("inf"))


TESTS: dict[str, Test] = {
    "rises": _from_first_to_last(1), "falls": _from_first_to_last(-1),
    "trends up": _trend(1), "trends down": _trend(-1),
    "ends above": _compared(1, last=True), "ends below": _compared(-1, last=True),
    "stays above": _compared(1, last=False), "stays below": _compared(-1, last=False),
    "reaches above": _reached, "bounded by": _bounded, "equals": _equals,
    "higher than": _metric(1), "lower than": _metric(-1), "equal to": _metric(0),
    "not lower than": _not_lower,
}  # fmt: skip
METRIC_TESTS = ("higher than", "lower than", "equal to", "not lower than")

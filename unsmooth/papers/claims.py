"""Checks whether measured curves agree with the claims of a figure or theorem."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from unsmooth.errors import unknown
from unsmooth.papers.catalogue import Claim, Experiment
from unsmooth.results.reproduction import ArmResult, ClaimCheck, ClaimResult, GroupResult, MeasuredCurve

# Tests of one curve compare its first and last value. Tests of two curves compare them at the last position ("ends") or
# at every position. "bounded by" compares the largest value over images with the smallest bound over images.
ONE_CURVE: dict[str, Callable[[float, float], bool]] = {"rises": lambda a, b: b > a, "falls": lambda a, b: b < a}
TWO_CURVES: dict[str, Callable[[float, float], bool]] = {
    "ends below": lambda a, b: a < b, "ends above": lambda a, b: a > b,
    "stays below": lambda a, b: a < b, "stays above": lambda a, b: a > b, "bounded by": lambda a, b: a <= b,
}  # fmt: skip
TESTS = (*ONE_CURVE, *TWO_CURVES)


def check_claims(experiment: Experiment, groups: Sequence[GroupResult]) -> list[ClaimResult]:
    """Check each claim for each group and arm. Claims about curves that were not measured are left out."""
    results = [
        ClaimResult(text=claim.text, checks=[check for group in groups for check in _check_group(claim, group)])
        for claim in experiment.claims
    ]
    return [result for result in results if result.checks]


def _check_group(claim: Claim, group: GroupResult) -> list[ClaimCheck]:
    if claim.test not in TESTS:
        raise unknown("test of a claim", claim.test, TESTS)
    checks = []
    for row in group.rows:
        holds = _holds(claim, group, row) if claim.arm in ("", row.name) else None
        if holds is not None:
            checks.append(ClaimCheck(group=group.name, arm=row.name, holds=holds))
    return checks


def _holds(claim: Claim, group: GroupResult, row: ArmResult) -> bool | None:
    """Whether a claim holds for an arm; None if there is nothing to compare."""
    bound = claim.test == "bounded by"
    own = _values(row.curves.get(claim.curve), "high" if bound else "mean")
    if claim.test in ONE_CURVE:
        return ONE_CURVE[claim.test](own[min(own)], own[max(own)]) if len(own) > 1 else None
    if re.fullmatch(r"-?[\d.]+", claim.than):
        other = dict.fromkeys(own, float(claim.than))
    else:
        other = _values(_other_curve(claim, group, row), "low" if bound else "mean")
    positions = sorted(set(own) & set(other))
    if claim.test.startswith("ends"):
        positions = positions[-1:]
    return all(TWO_CURVES[claim.test](own[i], other[i]) for i in positions) if positions else None


def _other_curve(claim: Claim, group: GroupResult, row: ArmResult) -> MeasuredCurve | None:
    """The curve to compare with: another curve of the same arm, or the same curve of another arm."""
    if claim.than in row.curves:
        return row.curves[claim.than]
    arm = next((other for other in group.rows if other.name == claim.than and other is not row), None)
    return None if arm is None else arm.curves.get(claim.curve)


def _values(curve: MeasuredCurve | None, end: str) -> dict[int, float]:
    """Values of a curve by index: its means, or the low or high end of their spread if it was measured."""
    if curve is None:
        return {}
    values = zip(curve.mean, getattr(curve, end) or curve.mean, strict=True)
    return {i: mean if value is None else value for i, (mean, value) in enumerate(values) if mean is not None}

"""Whether measured curves do what a figure or a theorem says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from unsmooth.errors import unknown
from unsmooth.papers.catalogue import Claim, Experiment
from unsmooth.report.reproduction_table import Row

# Of a curve alone: its first and last value. Beside another: at the last place, or at every one. Equal is not enough,
# but for a bound, which the largest value of any image must not pass where the smallest bound of any image is.
ALONG: dict[str, Callable[[float, float], bool]] = {"rises": lambda a, b: b > a, "falls": lambda a, b: b < a}
BESIDE: dict[str, Callable[[float, float], bool]] = {
    "ends below": lambda a, b: a < b, "ends above": lambda a, b: a > b,
    "stays below": lambda a, b: a < b, "stays above": lambda a, b: a > b, "bounded by": lambda a, b: a <= b,
}  # fmt: skip
TESTS = (*ALONG, *BESIDE)


def judge(experiment: Experiment, groups: list[Row]) -> list[dict[str, Any]]:
    """Each claim with what became of it in each group and arm; nothing where the curve was not measured."""
    return [
        {"text": claim.text, "found": found}
        for claim in experiment.claims
        if (found := [verdict for group in groups for verdict in _in_group(claim, group)])
    ]


def _in_group(claim: Claim, group: Row) -> list[dict[str, Any]]:
    if claim.test not in TESTS:
        raise unknown("test of a claim", claim.test, TESTS)
    found = []
    for row in group["rows"]:
        holds = _holds(claim, group, row) if claim.arm in ("", row["name"]) else None
        if holds is not None:
            found.append({"group": group["name"], "arm": row["name"], "holds": holds})
    return found


def _holds(claim: Claim, group: Row, row: Row) -> bool | None:
    """None where there is nothing to compare."""
    bound = claim.test == "bounded by"
    ours = _values(row["curves"].get(claim.curve), "high" if bound else "mean")
    if claim.test in ALONG:
        return ALONG[claim.test](ours[min(ours)], ours[max(ours)]) if len(ours) > 1 else None
    number = re.fullmatch(r"-?[\d.]+", claim.than)
    curve = _values(_other(claim, group, row), "low" if bound else "mean")
    other = dict.fromkeys(ours, float(claim.than)) if number else curve
    places = sorted(set(ours) & set(other))
    if claim.test.startswith("ends"):
        places = places[-1:]
    return all(BESIDE[claim.test](ours[place], other[place]) for place in places) if places else None


def _other(claim: Claim, group: Row, row: Row) -> Row | None:
    """What a curve is compared with: another curve of the same arm, or the same curve of another arm."""
    if claim.than in row["curves"]:
        return dict(row["curves"][claim.than])
    arm = next((r for r in group["rows"] if r["name"] == claim.than and r is not row), None)
    return None if arm is None else arm["curves"].get(claim.curve)


def _values(curve: Row | None, end: str) -> dict[int, float]:
    """The values of a curve by place; the mean where no spread was measured."""
    if curve is None:
        return {}
    values = zip(curve["mean"], curve.get(end) or curve["mean"], strict=True)
    return {at: mean if spread is None else spread for at, (mean, spread) in enumerate(values) if mean is not None}

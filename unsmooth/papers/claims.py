"""Whether measured curves do what a figure or a theorem says."""

from __future__ import annotations

from typing import Any

from unsmooth.errors import unknown
from unsmooth.papers.catalogue import Claim, Experiment
from unsmooth.papers.rows import Row

ALONG = ("rises", "falls")  # need two places
TESTS = (*ALONG, "ends below", "ends above", "stays below", "stays above")


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
        if claim.arm and row["name"] != claim.arm:
            continue
        ours = _values(row, claim.curve)
        other = _other(claim, group, row)
        if len(ours) > (claim.test in ALONG) and other is not None:
            found.append({"group": group["name"], "arm": row["name"], "holds": _holds(claim.test, ours, other)})
    return found


def _other(claim: Claim, group: Row, row: Row) -> list[float] | None:
    """What a curve is compared with: nothing, another curve of the same arm, or the same curve of another arm."""
    if claim.test in ALONG:
        return []
    values = _values(row, claim.than)
    if not values:
        arm = next((r for r in group["rows"] if r["name"] == claim.than and r is not row), None)
        values = _values(arm, claim.curve) if arm is not None else []
    return values or None


def _values(row: Row, label: str) -> list[float]:
    return [value for value in row["curves"].get(label, {}).get("mean", []) if value is not None]


def _holds(test: str, ours: list[float], other: list[float]) -> bool:
    if test in ALONG:
        return (ours[-1] > ours[0]) == (test == "rises")
    pairs = [(ours[-1], other[-1])] if test.startswith("ends") else list(zip(ours, other, strict=False))
    return all(a <= b if test.endswith("below") else a >= b for a, b in pairs)

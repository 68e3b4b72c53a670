"""Numbers of diagnoses in the form that pages and figures need.

A list of diagnoses may hold None: an arm of a trial that was not diagnosed keeps its place, and with it its colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from unsmooth.report.formatting import number

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.measured import Series, VitalResult
    from unsmooth.results.verdict import Limit

Diagnoses = Sequence["Diagnosis | None"]
VERDICT = ("token_cosine", "effective_rank")  # every verdict is about these


def kind(part: str, series: Series) -> str:
    """The kind of a part's values: "line", "heads", "matrix", "values" (a spectrum), "curves" or "none"."""
    nesting = max((_nesting(spread.mean) for spread in series if spread is not None), default=-1)
    if nesting == 1:
        last = part.split(".")[-1]
        return last if last in ("matrix", "values") else "heads"
    return {-1: "none", 0: "line", 2: "curves"}.get(nesting, "none")


def _nesting(value: Any) -> int:
    """0: a number; 1: a list of numbers (heads, or a row of a matrix); 2: heads × curve."""
    depth = 0
    while isinstance(value, list):
        depth, value = depth + 1, value[0] if value else None
    return depth


def column(series: Series | None, name: str = "mean") -> list[float | None]:
    """One number per block: the mean, or "sd" or "images"."""
    return [None if spread is None else number(getattr(spread, name)) for spread in series or []]


def has_numbers(values: Iterable[float | None]) -> bool:
    return any(v is not None for v in values)


def main_part(vital: VitalResult | None) -> str | None:
    """The part to show for a vital: its main part, or else its first part with one number per block."""
    if vital is not None:
        for part in (vital.main, *vital.parts):
            series = vital.parts.get(part, [])
            if kind(part, series) == "line" and has_numbers(column(series)):
                return part
    return None


def vital_of(diagnosis: Diagnosis | None, key: str) -> VitalResult | None:
    return None if diagnosis is None else diagnosis.vitals.get(key)


def reference_series(diagnosis: Diagnosis, key: str, part: str) -> Series:
    """The same part of the same vital at random initialisation; empty if it was not measured."""
    return [] if diagnosis.reference is None else diagnosis.reference.vitals.get(key, {}).get(part, [])


def merged(diagnoses: Diagnoses) -> dict[str, VitalResult]:
    """The description of every vital that any of the diagnoses has."""
    vitals: dict[str, VitalResult] = {}
    for diagnosis in diagnoses:
        for key, vital in diagnosis.vitals.items() if diagnosis is not None else ():
            vitals.setdefault(key, vital)
    return vitals


def parts_of(diagnoses: Diagnoses, key: str) -> dict[str, list[Series | None]]:
    """Every part of a vital, with one series or None per diagnosis. The main part comes first."""
    vitals = [vital_of(diagnosis, key) for diagnosis in diagnoses]
    names: dict[str, None] = {}
    for vital in vitals:
        if vital is not None:
            main = main_part(vital)
            names |= dict.fromkeys([main] if main is not None else []) | dict.fromkeys(sorted(vital.parts))
    return {part: [None if vital is None else vital.parts.get(part) for vital in vitals] for part in names}


def depth_of(diagnoses: Diagnoses) -> int:
    """The largest number of blocks."""
    return max(0 if diagnosis is None else diagnosis.blocks for diagnosis in diagnoses)


def bound_pairs(parts: Iterable[str]) -> list[tuple[str | None, str]]:
    """Parts of a theory vital as (bound, measured). A measurement without a bound has None.

    "stack" and "stack.linear" are both bounds of "stack.measured".
    """
    names = list(parts)
    pairs: list[tuple[str | None, str]] = []
    for name in names:
        owners = (name, name.rpartition(".")[0]) if "." in name else (name,)
        measured = next((m for m in (f"{owner}.measured".lstrip(".") for owner in owners) if m in names), None)
        if measured is not None and measured != name:
            pairs.append((name, measured))
    paired = {name for pair in pairs for name in pair}
    return pairs + [(None, name) for name in names if name not in paired]


def deciding_vitals(diagnoses: Diagnoses) -> list[str]:
    """Vitals with a limit in the evidence of findings, those of the most severe findings first.

    A note does not decide a verdict: what every verdict reads comes before it.
    """
    findings = [finding for diagnosis in diagnoses if diagnosis is not None for finding in diagnosis.findings]
    by_severity = {
        severity: [e.vital for f in findings if f.severity == severity for e in f.evidence if e.limit is not None]
        for severity in ("severe", "warning", "note")
    }
    return list(dict.fromkeys((*by_severity["severe"], *by_severity["warning"], *VERDICT, *by_severity["note"])))


def limits_of(diagnoses: Diagnoses, key: str, part: str) -> list[Limit]:
    """Limits of a part of a vital: those of the first diagnosis that has them."""
    for diagnosis in diagnoses:
        limits = [] if diagnosis is None else [x for x in diagnosis.limits if (x.vital, x.part) == (key, part)]
        if limits:
            return limits
    return []


def past_limits(diagnosis: Diagnosis, key: str, part: str) -> dict[int, float]:
    """Blocks in which a part of a vital is past a limit, with that limit."""
    vital = diagnosis.vitals[key]
    series = vital.parts.get(part, [])
    if kind(part, series) != "line":
        return {}
    past: dict[int, float] = {}
    for limit in limits_of([diagnosis], key, part):
        for block, (value, at) in enumerate(zip(column(series), limit.values, strict=False)):
            if value is not None and at is not None and (value >= at if limit.above else value <= at):
                past.setdefault(block, at)
    return past


def deciding_parts(diagnoses: Diagnoses) -> dict[str, str]:
    """The part of each vital that a limit in the evidence of a finding is about."""
    findings = [finding for diagnosis in diagnoses if diagnosis is not None for finding in diagnosis.findings]
    parts: dict[str, str] = {}
    for evidence in (e for finding in findings for e in finding.evidence if e.limit is not None):
        parts.setdefault(evidence.vital, evidence.part)
    return parts


def marked_blocks(diagnosis: Diagnosis | None, key: str) -> list[int]:
    """Blocks of the findings that rest on a vital."""
    if diagnosis is None:
        return []
    findings = [f for f in diagnosis.findings if any(evidence.vital == key for evidence in f.evidence)]
    return sorted({block for finding in findings for block in finding.blocks})

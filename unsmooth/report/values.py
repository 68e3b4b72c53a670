"""Numbers out of a diagnosis, as the page and the figures both want them."""

from __future__ import annotations

from typing import Any

from unsmooth.report.words import number

Facts = dict[str, Any]


def deep(value: Any) -> int:
    """0: a number; 1: a list of numbers (heads, or a row of a matrix); 2: heads × curve."""
    depth = 0
    while isinstance(value, list):
        depth, value = depth + 1, value[0] if value else None
    return depth


def kind(part: str, series: list[Any]) -> str:
    """What a part's values are: "line", "heads", "matrix", "values" (a spectrum), "curves"; "none" without a value."""
    depth = max((deep(s.get("mean")) for s in series if s), default=-1)
    if depth == 1:
        last = part.split(".")[-1]
        return last if last in ("matrix", "values") else "heads"
    return {-1: "none", 0: "line", 2: "curves"}.get(depth, "none")


def column(series: list[Any] | None, name: str = "mean") -> list[float | None]:
    """One number a block."""
    return [number(s.get(name)) if s else None for s in series or []]


def has_numbers(values: list[float | None]) -> bool:
    return any(v is not None for v in values)


def main_part(facts: Facts) -> str | None:
    """The part that stands for a vital: the one it names, or else its first that is one number a block."""
    parts = facts["parts"]
    for part in (facts["main"], *parts):
        if part in parts and kind(part, parts[part]) == "line" and has_numbers(column(parts[part])):
            return str(part)
    return None


def main_column(facts: Facts | None) -> list[float | None]:
    part = None if facts is None else main_part(facts)
    return [] if facts is None or part is None else column(facts["parts"][part])


def reference(diagnosis: dict[str, Any], key: str, part: str) -> list[Any]:
    """The same part of the same vital at random start, or nothing."""
    start = diagnosis.get("reference") or {}
    return (start.get("vitals", {}).get(key) or {}).get(part) or []


def merged(diagnoses: list[dict[str, Any]]) -> dict[str, Facts]:
    """What is said of every vital that any of the diagnoses has; its numbers stay where they are."""
    out: dict[str, Facts] = {}
    for diagnosis in diagnoses:
        for key, facts in diagnosis["vitals"].items():
            out.setdefault(key, facts)
    return out


def parts_of(diagnoses: list[dict[str, Any]], key: str) -> dict[str, list[list[Any] | None]]:
    """Every part of a vital, with one series (or None) for each diagnosis. The main part comes first."""
    names: dict[str, None] = {}
    for d in diagnoses:
        facts = d["vitals"].get(key)
        if facts is not None:
            main = main_part(facts)
            names |= dict.fromkeys([main] if main is not None else []) | dict.fromkeys(sorted(facts["parts"]))
    return {p: [(d["vitals"].get(key) or {"parts": {}})["parts"].get(p) for d in diagnoses] for p in names}


def depth_of(diagnoses: list[dict[str, Any]]) -> int:
    return max(len(d["model"]["blocks"]) for d in diagnoses)


def measured_name(part: str) -> str:
    """The part that was measured, of a bound's name."""
    return f"{part}.measured" if part else "measured"


def bound_pairs(parts: Any) -> list[tuple[str | None, str]]:
    """Parts of a theory vital as (bound, measured); what no bound is for stands as a measurement alone."""
    names = list(parts)
    pairs: list[tuple[str | None, str]] = []
    taken = set()
    for name in names:
        if measured_name(name) in names:
            pairs.append((name, measured_name(name)))
            taken |= {name, measured_name(name)}
    return pairs + [(None, name) for name in names if name not in taken]


def marked_blocks(diagnosis: dict[str, Any], key: str) -> list[int]:
    """Blocks of findings that rest on a vital."""
    blocks = {
        int(block)
        for finding in diagnosis["findings"]
        if any(e.get("vital") == key for e in finding.get("evidence", []))
        for block in finding.get("blocks", [])
    }
    return sorted(blocks)

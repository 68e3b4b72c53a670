"""The numbers behind the charts of a page, as small as they can be: columns by block, one for each model."""

from __future__ import annotations

import re
from typing import Any

from unsmooth.report.values import (
    bound_pairs,
    column,
    has_numbers,
    kind,
    marked_blocks,
    merged,
    parts_of,
    reference,
)
from unsmooth.report.words import letter, number, part_label, part_meaning

Diagnoses = list[dict[str, Any]]
POINTS = 300  # of a curve: more than a screen shows


def curves(diagnoses: Diagnoses) -> list[dict[str, Any]]:
    """Every vital that has a number a block, with all its parts."""
    out = []
    for key, facts in merged(diagnoses).items():
        if facts["family"] == "theory":
            continue
        parts = [_part(diagnoses, key, part, series, facts) for part, series in parts_of(diagnoses, key).items()]
        kept = [part for part in parts if part is not None]
        if any(part["kind"] == "line" for part in kept):
            out.append({
                "key": key, "title": facts["title"], "low": number(facts["low"]), "high": number(facts["high"]),
                "family": facts["family"], "parts": kept, "marks": [marked_blocks(d, key) for d in diagnoses],
            })  # fmt: skip
    return out


def _part(diagnoses: Diagnoses, key: str, part: str, series: list[Any], facts: Any) -> dict[str, Any] | None:
    what = next((k for s in series if s is not None and (k := kind(part, s)) != "none"), "none")
    described = {
        "part": part, "label": part_label(part, facts["main"]), "kind": what,
        "meaning": part_meaning(part, facts["meaning"]),
    }  # fmt: skip
    if what == "line":
        return described | {"by": [_line(d, key, part, s) for d, s in zip(diagnoses, series, strict=True)]}
    if what in ("heads", "matrix"):
        return described | {"by": [None if s is None else [_row(b, 4) for b in s] for s in series]}
    return None


def _line(diagnosis: dict[str, Any], key: str, part: str, series: list[Any] | None) -> dict[str, Any] | None:
    if series is None or not has_numbers(column(series)):
        return None
    line: dict[str, Any] = {"mean": column(series), "sd": column(series, "sd"), "n": column(series, "images")}
    start = reference(diagnosis, key, part)
    if has_numbers(column(start)):
        line |= {"start": column(start), "startSd": column(start, "sd")}
    return line


def _row(spread: Any, digits: int) -> list[float | None] | None:
    mean = spread.get("mean") if spread else None
    return [number(v, digits) for v in mean] if isinstance(mean, list) else None


def grids(diagnoses: Diagnoses) -> list[dict[str, Any]]:
    """Curves by head and block (spectra, cumulative singular values), for small multiples."""
    out = []
    for key, facts in merged(diagnoses).items():
        for part, series in parts_of(diagnoses, key).items():
            if not any(s is not None and kind(part, s) == "curves" for s in series):
                continue
            by = [None if s is None else [_heads(b) for b in s] for s in series]
            if not any(v for model in by if model for block in model if block for head in block for v in head):
                continue
            out.append({
                "key": key, "part": part, "title": facts["title"],
                "meaning": part_meaning(part, facts["meaning"]),
                "x": "frequency" if key == "attention_spectrum" else "singular values",
                "log": key == "attention_spectrum",
                "by": by,
            })  # fmt: skip
    return out


def _heads(spread: Any) -> list[list[float | None]] | None:
    mean = spread.get("mean") if spread else None
    if not isinstance(mean, list):
        return None
    return [_thin([number(v, 4) for v in head]) for head in mean if isinstance(head, list)]


def _thin(curve: list[float | None]) -> list[float | None]:
    """At most POINTS of a curve, the first and the last among them."""
    if len(curve) <= POINTS:
        return curve
    return [curve[round(i * (len(curve) - 1) / (POINTS - 1))] for i in range(POINTS)]


def bounds(diagnoses: Diagnoses) -> list[dict[str, Any]]:
    """Theory: what a theorem allows, against what was measured."""
    out = []
    for key, facts in merged(diagnoses).items():
        if facts["family"] != "theory":
            continue
        parts = {p: s for p, s in parts_of(diagnoses, key).items() if any(v and kind(p, v) == "line" for v in s)}
        for bound, measured in bound_pairs(parts):
            name = measured.removesuffix("measured").rstrip(".")
            by = [
                {"bound": [] if bound is None else column(parts[bound][i]), "measured": column(parts[measured][i])}
                for i in range(len(diagnoses))
            ]
            if any(has_numbers(b["bound"]) or has_numbers(b["measured"]) for b in by):
                meaning = facts["meaning"]
                out.append({
                    "key": key, "title": facts["title"], "name": name, "by": by,
                    "meaning": part_meaning(name, meaning), "log": _orders_apart(by, facts["formula"]),
                    "measured": str(meaning.get(measured, meaning.get("*.measured", ""))) if bound is not None else "",
                })  # fmt: skip
    return out


def _orders_apart(by: list[dict[str, list[float | None]]], formula: str) -> bool:
    """Whether only a logarithm shows a bound and what it bounds; what is one already needs no second."""
    values = [v for model in by for values in model.values() for v in values if v is not None]
    return min(values) > 0 and max(values) / min(values) > 50 and re.search(r"\b(ln|log)\b", formula) is None


def spectra(diagnoses: Diagnoses) -> list[dict[str, Any]]:
    """Theory: singular values in descending order, one chart a vital with a line for each part and block."""
    out = []
    for key, facts in merged(diagnoses).items():
        lines = [
            {"model": i, "block": block, "part": part_label(part.removesuffix("values").rstrip(".")), "values": values}
            for part, series in reversed(parts_of(diagnoses, key).items())
            for i, own in enumerate(series)
            if own is not None and kind(part, own) == "values"
            for block, spread in enumerate(own)
            if (values := _row(spread, 4))
        ]
        if lines:
            out.append({"key": key, "title": facts["title"], "lines": lines})
    return out


def learned(diagnoses: Diagnoses) -> list[dict[str, Any]]:
    """Remedy parameters by block, one chart for each remedy and parameter."""
    out: dict[tuple[str, str], dict[str, Any]] = {}
    for i, diagnosis in enumerate(diagnoses):
        for row in diagnosis.get("learned") or []:
            chart = out.setdefault(
                (row["remedy"], row["parameter"]),
                {"remedy": row["remedy"], "name": row["parameter"], "rows": [], "count": row["count"]},
            )
            chart["rows"].append({
                "model": i, "block": row["block"], "at": row["name"], "count": row["count"],
                "mean": number(row["mean"]), "low": number(row["low"]), "high": number(row["high"]),
                "quantiles": bool(row["quantiles"]),
                "values": [number(v, 4) for v in row["values"]],
            })  # fmt: skip
    return list(out.values())


def samples(diagnoses: Diagnoses) -> list[list[dict[str, Any]]]:
    """Sample images of each model, as they come; a picture that is none is left out."""
    out = []
    for diagnosis in diagnoses:
        kept = []
        for sample in diagnosis.get("samples") or []:
            if sample["blocks"]:
                picture = str(sample.get("picture") or "")
                kept.append({**sample, "picture": picture if picture.startswith("data:image/") else ""})
        out.append(kept)
    return out


def models(diagnoses: Diagnoses, names: list[str]) -> list[dict[str, Any]]:
    """What charts call the models."""
    return [
        {"name": name, "letter": letter(i), "blocks": len(d["model"]["blocks"])}
        for i, (name, d) in enumerate(zip(names, diagnoses, strict=True))
    ]


def chart_data(diagnoses: Diagnoses, names: list[str]) -> dict[str, Any]:
    """All of it but the samples, which are large and have a place of their own."""
    return {
        "models": models(diagnoses, names),
        "curves": curves(diagnoses),
        "grids": grids(diagnoses),
        "bounds": bounds(diagnoses),
        "spectra": spectra(diagnoses),
        "learned": learned(diagnoses),
    }

"""Data of the charts of a page: values by block, one entry per model, as small JSON."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unsmooth.report.formatting import letter, number, part_label, part_meaning
from unsmooth.report.values import (
    Diagnoses,
    bound_pairs,
    column,
    deciding_parts,
    deciding_vitals,
    has_numbers,
    kind,
    limits_of,
    marked_blocks,
    merged,
    parts_of,
    reference_series,
)

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.measured import Series, Spread, VitalResult
    from unsmooth.results.sample import TokenPictures

Payload = dict[str, Any]  # what the scripts of the page read
POINTS = 300  # per curve: more than a screen shows


def curves(diagnoses: Diagnoses) -> list[Payload]:
    """Every vital that has one number per block, with all its parts."""
    payloads, chosen = [], deciding_parts(diagnoses)
    for key, vital in merged(diagnoses).items():
        if vital.family == "theory":
            continue
        parts = [_part(diagnoses, key, part, series, vital) for part, series in parts_of(diagnoses, key).items()]
        shown = [part for part in parts if part is not None]
        shown.sort(key=lambda part: (part["part"], part["kind"]) != (chosen.get(key), "line"))
        if any(part["kind"] == "line" for part in shown):
            low, high = (vital.low, vital.high) if shown[0]["part"] == vital.main else (None, None)
            payloads.append({
                "key": key, "title": vital.title, "low": number(low), "high": number(high),
                "family": vital.family, "parts": shown, "marks": [marked_blocks(d, key) for d in diagnoses],
            })  # fmt: skip
    decided = deciding_vitals(diagnoses)
    payloads.sort(key=lambda payload: decided.index(payload["key"]) if payload["key"] in decided else len(decided))
    return payloads


def _part(diagnoses: Diagnoses, key: str, part: str, series: list[Series | None], vital: VitalResult) -> Payload | None:
    kinds = [kind(part, s) for s in series if s is not None]
    part_kind = next((k for k in kinds if k != "none"), "none")
    payload = {
        "part": part, "label": part_label(part), "kind": part_kind, "meaning": part_meaning(part, vital.meaning),
    }  # fmt: skip
    if part_kind == "line":
        limits = [
            {"values": values, "name": f"limit: {limit.meaning}", "label": limit.threshold, "above": limit.above}
            for limit in limits_of(diagnoses, key, part)
            if has_numbers(values := _attainable(limit.values, vital, part))
        ]
        by = [_line(d, key, part, s) for d, s in zip(diagnoses, series, strict=True)]
        return payload | {"by": by, "limits": limits}
    if part_kind in ("heads", "matrix"):
        return payload | {"by": [None if s is None else [_row(spread) for spread in s] for s in series]}
    return None


def _attainable(limit: list[float | None], vital: VitalResult, part: str) -> list[float | None]:
    """A limit without the values that lie beyond the range of the vital, which would only stretch the axis."""
    low, high = (vital.low, vital.high) if part == vital.main else (None, None)
    inside = ((v is None or low is None or v >= low) and (v is None or high is None or v <= high) for v in limit)
    return [v if keep else None for v, keep in zip(limit, inside, strict=True)]


def _line(diagnosis: Diagnosis | None, key: str, part: str, series: Series | None) -> Payload | None:
    if diagnosis is None or series is None or not has_numbers(column(series)):
        return None
    line: Payload = {"mean": column(series), "sd": column(series, "sd"), "n": column(series, "images")}
    reference = reference_series(diagnosis, key, part)
    if has_numbers(column(reference)):
        line |= {"random": column(reference), "randomSd": column(reference, "sd")}
    return line


def _row(spread: Spread | None) -> list[float | None] | None:
    if spread is None or not isinstance(spread.mean, list):
        return None
    return [number(v, 4) for v in spread.mean]


def grids(diagnoses: Diagnoses) -> list[Payload]:
    """Curves by head and block, such as spectra and cumulative singular values, for small multiples."""
    payloads = []
    for key, vital in merged(diagnoses).items():
        for part, series in parts_of(diagnoses, key).items():
            if not any(s is not None and kind(part, s) == "curves" for s in series):
                continue
            by = [None if s is None else [_heads(spread) for spread in s] for s in series]
            if not any(v for model in by if model for block in model if block for head in block for v in head):
                continue
            payloads.append({
                "key": key, "part": part, "title": vital.title, "meaning": part_meaning(part, vital.meaning),
                "x": "frequency" if key == "attention_spectrum" else "singular values",
                "log": key == "attention_spectrum",
                "by": by,
            })  # fmt: skip
    return payloads


def _heads(spread: Spread | None) -> list[list[float | None]] | None:
    if spread is None or not isinstance(spread.mean, list):
        return None
    return [_thin([number(v, 4) for v in head]) for head in spread.mean if isinstance(head, list)]


def _thin(curve: list[float | None]) -> list[float | None]:
    """At most POINTS points of a curve, including the first and the last one."""
    if len(curve) <= POINTS:
        return curve
    return [curve[round(i * (len(curve) - 1) / (POINTS - 1))] for i in range(POINTS)]


def bounds(diagnoses: Diagnoses) -> list[Payload]:
    """Bounds of theorems and the measured values."""
    payloads = []
    for key, vital in merged(diagnoses).items():
        if vital.family != "theory":
            continue
        parts = {p: s for p, s in parts_of(diagnoses, key).items() if any(v and kind(p, v) == "line" for v in s)}
        for bound, measured in bound_pairs(parts):
            name = measured.removesuffix("measured").rstrip(".") if bound is None else bound
            by = [
                {"bound": [] if bound is None else column(parts[bound][i]), "measured": column(parts[measured][i])}
                for i in range(len(diagnoses))
            ]
            if any(has_numbers(b["bound"]) or has_numbers(b["measured"]) for b in by):
                described = vital.meaning.get(measured, vital.meaning.get("*.measured", ""))
                payloads.append({
                    "key": key, "title": vital.title, "name": name, "by": by,
                    "meaning": part_meaning(name, vital.meaning), "log": _needs_log(by, vital.formula),
                    "measured": described if bound is not None else "",
                })  # fmt: skip
    return payloads


def _needs_log(by: list[dict[str, list[float | None]]], formula: str) -> bool:
    """Whether bound and measurement are orders of magnitude apart and are not logarithms already."""
    values = [v for model in by for column in model.values() for v in column if v is not None]
    return min(values) > 0 and max(values) / min(values) > 50 and re.search(r"\b(ln|log)\b", formula) is None


def spectra(diagnoses: Diagnoses) -> list[Payload]:
    """Singular values in descending order: one chart per vital, one line per part and block."""
    payloads = []
    for key, vital in merged(diagnoses).items():
        lines = [
            {"model": i, "block": block, "part": part_label(part.removesuffix("values").rstrip(".")), "values": values}
            for part, by_model in reversed(parts_of(diagnoses, key).items())
            for i, series in enumerate(by_model)
            if series is not None and kind(part, series) == "values"
            for block, spread in enumerate(series)
            if (values := _row(spread))
        ]
        if lines:
            payloads.append({"key": key, "title": vital.title, "lines": lines})
    return payloads


def learned(diagnoses: Diagnoses) -> list[Payload]:
    """Parameters of remedies by block: one chart per remedy and parameter."""
    payloads: dict[tuple[str, str], Payload] = {}
    for i, diagnosis in enumerate(diagnoses):
        for row in diagnosis.learned if diagnosis is not None else ():
            payload = payloads.setdefault(
                (row.remedy, row.parameter),
                {"remedy": row.remedy, "name": row.parameter, "rows": [], "count": row.count},
            )
            payload["rows"].append({
                "model": i, "block": row.block, "at": row.name, "count": row.count, "mean": number(row.mean),
                "low": number(row.low), "high": number(row.high), "quantiles": row.quantiles,
                "values": [number(v, 4) for v in row.values],
            })  # fmt: skip
    return list(payloads.values())


def samples(diagnoses: Diagnoses) -> list[list[Payload]]:
    """Sample images of each model that have maps. Only embedded pictures are included."""
    return [
        [
            {
                "name": sample.name,
                "picture": sample.picture if sample.picture.startswith("data:image/") else "",
                "blocks": {
                    block: {
                        "grid": entry.grid, "queries": entry.queries, "heads": entry.heads, "maps": entry.maps,
                        "similarity": entry.similarity,
                    }
                    for block, entry in sample.blocks.items()
                },
                "pictures": {block: _without_none(entry) for block, entry in sample.pictures.items()},
                "trajectories": None if sample.trajectories is None else asdict(sample.trajectories),
                "leftOut": sample.left_out,
            }
            for sample in diagnosis.samples
            if sample.blocks
        ]
        if diagnosis is not None
        else []
        for diagnosis in diagnoses
    ]  # fmt: skip


def _without_none(pictures: TokenPictures) -> Payload:
    return {name: value for name, value in asdict(pictures).items() if value is not None}


def models(diagnoses: Diagnoses, names: list[str]) -> list[Payload]:
    """Name, letter and number of blocks of each model."""
    return [
        {"name": name, "letter": letter(i), "blocks": 0 if d is None else d.blocks}
        for i, (name, d) in enumerate(zip(names, diagnoses, strict=True))
    ]


def chart_data(diagnoses: Diagnoses, names: list[str]) -> Payload:
    """Data of all charts except the samples, which are large and have their own script element."""
    return {
        "models": models(diagnoses, names),
        "curves": curves(diagnoses),
        "grids": grids(diagnoses),
        "bounds": bounds(diagnoses),
        "spectra": spectra(diagnoses),
        "learned": learned(diagnoses),
    }

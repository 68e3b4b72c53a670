"""The heatmap of a page: vitals by block. Colour marks what is past a limit; shades of grey show the range of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unsmooth.report.formatting import FAMILIES, part_label
from unsmooth.report.values import (
    Diagnoses,
    column,
    deciding_parts,
    deciding_vitals,
    has_numbers,
    kind,
    main_part,
    marked_blocks,
    merged,
    past_limits,
    vital_of,
)

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.measured import VitalResult

FLAT = 0.02  # a row whose values differ by less than this share of the largest one is not shaded


@dataclass
class Cell:
    """One block. `level` is the value on the scale of the row, from 0 to 1; `reason` says why there is no value.

    `limit` is the limit that the value is past, if it is.
    """

    block: int
    marked: bool
    value: float | None
    sd: float | None
    images: int | None
    level: float | None
    reason: str
    limit: float | None = None

    @property
    def bad(self) -> bool:
        return self.limit is not None


@dataclass
class ModelCells:
    """The cells of one model, by its index."""

    index: int
    cells: list[Cell]


@dataclass
class Row:
    """One vital, with its range over all models."""

    key: str
    title: str
    family: str
    part: str
    low: float
    high: float
    models: list[ModelCells]

    @property
    def abnormal(self) -> bool:
        return any(cell.bad for model in self.models for cell in model.cells)

    @property
    def flat(self) -> bool:
        return is_flat(self.low, self.high)


def heatmap(diagnoses: Diagnoses) -> dict[str, list[Row]]:
    """One row per vital that has one number per block, by family. Rows past a limit come first, as a group."""
    rows, chosen = [], deciding_parts(diagnoses)
    for key, vital in merged(diagnoses).items():
        shown = [(i, d, _part(d, key, chosen.get(key))) for i, d in enumerate(diagnoses)]
        if vital.family == "theory" or all(part is None for *_, part in shown):
            continue
        # All models show the same part where they can: that of the first model that is past a limit.
        first = next((part for _, d, part in shown if part is not None and part != main_part(vital_of(d, key))), None)
        shown_parts = [
            (i, d, first if first is not None and _has(d, key, first) else part)
            for i, d, part in shown
            if d is not None and part is not None
        ]
        values = [v for _, d, part in shown_parts for v in column(d.vitals[key].parts[part]) if v is not None]
        low, high = min(values), max(values)
        cells = [ModelCells(i, _cells(d, key, part, low, high)) for i, d, part in shown_parts]
        part = shown_parts[0][2]
        rows.append(Row(key, vital.title, vital.family, part_label(part) if part else "", low, high, cells))
    decided = deciding_vitals(diagnoses)
    rows.sort(key=lambda row: decided.index(row.key) if row.key in decided else len(decided))
    groups: dict[str, list[Row]] = {family: [] for family in ("limits", *FAMILIES)}
    for row in rows:
        groups.setdefault("limits" if row.abnormal else row.family, []).append(row)
    return {family: own for family, own in groups.items() if own}


def is_flat(low: float, high: float) -> bool:
    return high - low <= FLAT * max(abs(low), abs(high))


def _part(diagnosis: Diagnosis | None, key: str, deciding: str | None) -> str | None:
    """The part to show: that of a finding, or the main one unless only another one is past a limit."""
    vital = vital_of(diagnosis, key)
    main = main_part(vital)
    if deciding is not None and main is not None and _has(diagnosis, key, deciding):
        return deciding
    if diagnosis is None or vital is None or main is None or past_limits(diagnosis, key, main):
        return main
    return next((part for part in vital.parts if past_limits(diagnosis, key, part)), main)


def _has(diagnosis: Diagnosis | None, key: str, part: str) -> bool:
    vital = vital_of(diagnosis, key)
    series = [] if vital is None else vital.parts.get(part, [])
    return kind(part, series) == "line" and has_numbers(column(series))


def _cells(diagnosis: Diagnosis, key: str, part: str, low: float, high: float) -> list[Cell]:
    vital: VitalResult = diagnosis.vitals[key]
    series, marked = vital.parts[part], set(marked_blocks(diagnosis, key))
    past = past_limits(diagnosis, key, part)
    cells = []
    for block, (value, sd) in enumerate(zip(column(series), column(series, "sd"), strict=True)):
        spread = series[block]
        level = None if value is None else 0.0 if is_flat(low, high) else round((value - low) / (high - low), 3)
        reason = "" if value is not None else vital.skipped.get(block, "not measured")
        images = spread.images if spread else None
        cells.append(Cell(block, block in marked, value, sd, images, level, reason, past.get(block)))
    return cells

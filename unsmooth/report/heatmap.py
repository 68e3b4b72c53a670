"""The heatmap of a page: vitals by block, each row on its own scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unsmooth.report.formatting import part_label
from unsmooth.report.values import Diagnoses, column, deciding_vitals, main_part, marked_blocks, merged, vital_of

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis, VitalResult


@dataclass
class Cell:
    """One block. `level` is the value on the scale of the row, from 0 to 1; `reason` says why there is no value."""

    block: int
    marked: bool
    value: float | None
    sd: float | None
    images: int | None
    level: float | None
    reason: str


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


def heatmap(diagnoses: Diagnoses) -> list[Row]:
    """One row per vital that has one number per block."""
    rows = []
    for key, vital in merged(diagnoses).items():
        shown = [(i, d, main_part(vital_of(d, key))) for i, d in enumerate(diagnoses)]
        shown_parts = [(i, d, part) for i, d, part in shown if d is not None and part is not None]
        if vital.family == "theory" or not shown_parts:
            continue
        values = [v for _, d, part in shown_parts for v in column(d.vitals[key].parts[part]) if v is not None]
        low, high = min(values), max(values)
        cells = [ModelCells(i, _cells(d, key, part, low, high)) for i, d, part in shown_parts]
        part = shown_parts[0][2]
        rows.append(Row(key, vital.title, vital.family, part_label(part) if part else "", low, high, cells))
    decided = deciding_vitals(diagnoses)
    return sorted(rows, key=lambda row: decided.index(row.key) if row.key in decided else len(decided))


def _cells(diagnosis: Diagnosis, key: str, part: str, low: float, high: float) -> list[Cell]:
    vital: VitalResult = diagnosis.vitals[key]
    series, marked = vital.parts[part], set(marked_blocks(diagnosis, key))
    cells = []
    for block, (value, sd) in enumerate(zip(column(series), column(series, "sd"), strict=True)):
        spread = series[block]
        level = None if value is None else round((value - low) / (high - low), 3) if high > low else 0.0
        reason = "" if value is not None else vital.skipped.get(block, "not measured")
        cells.append(Cell(block, block in marked, value, sd, spread.images if spread else None, level, reason))
    return cells

"""A prescription as text for the terminal, and its rows for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from unsmooth.report.terminal import plain_text

if TYPE_CHECKING:
    from unsmooth.results.prescription import Prescription


def as_text(prescription: Prescription, width: int = 80) -> str:
    return plain_text(as_rich(prescription), width) + "\n"


def as_rich(prescription: Prescription) -> list[RenderableType]:
    """The diagnosis, the table of candidates and the recommendation."""
    pieces: list[RenderableType] = [escape(f"Diagnosis: {prescription.verdict.state}. {prescription.verdict.text}")]
    headings, rows = candidate_rows(prescription)
    if rows:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_edge=False)
        for i, heading in enumerate(headings):
            table.add_column(heading, justify="left" if i in (0, len(headings) - 1) else "right")
        for row in rows:
            table.add_row(*map(escape, row))
        pieces += ["", table, ""]
    budget = prescription.budget
    pieces.append(f"Trained on {budget.spent:,} images; the budget was {budget.images:,} ({budget.runs:g} runs).")
    return [*pieces, f"[bold]{escape(prescription.text)}[/bold]"]


def candidate_rows(prescription: Prescription) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: the candidates, their accuracies by rung, and the final difference."""
    headings = ["candidate", *(f"{rung.epochs} epochs" for rung in prescription.rungs), "final difference"]
    rows = []
    for candidate in prescription.candidates:
        cells = [candidate.name]
        for rung in prescription.rungs:
            run = next((run for run in rung.runs if run.name == candidate.name), None)
            cells.append("" if run is None else "failed" if run.top1 is None else f"{100 * run.top1:.1f} %")
        final = next((e for e in prescription.evidence if e.name == candidate.name), None)
        shown = "" if final is None else "failed" if final.difference is None else final.difference.text
        rows.append([*cells, shown])
    return headings, rows

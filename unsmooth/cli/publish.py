"""Writes diagnoses to a folder: the JSON of each, and one report or one set of figures of all."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.report.render import FORMATS, diagnosis_figures, render
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.utils.files import write


def check_target(folder: Path | None, format: str) -> None:
    """Refuse, before any work, what cannot be written."""
    if format not in FORMATS:
        raise unknown("format of a report", format, FORMATS)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UnsmoothError(f"{folder} is a file; --out takes a folder")


def write_report(diagnoses: Sequence[Diagnosis], folder: Path, format: str = "html") -> list[Path]:
    """The files that were written: NAME.json for each diagnosis, report.html, or figures by name."""
    check_target(folder, format)
    written: list[Path] = []
    for i, diagnosis in enumerate(diagnoses):
        name = re.sub(r"[^A-Za-z0-9.+=-]+", "_", diagnosis.model.name).strip("_")[:80] or "model"
        path = folder / f"{f'{i + 1}-' if len(diagnoses) > 1 else ''}{name}.json"
        diagnosis.to_json(path)
        written.append(path)
    if format == "html":
        written.append(folder / "report.html")
        write(written[-1], render(diagnoses, format))
        return written
    for name, figure in diagnosis_figures(diagnoses).items():
        file = io.BytesIO()
        figure.savefig(file, format=format, bbox_inches="tight")
        written.append(folder / f"{name}.{format}")
        write(written[-1], file.getvalue())
    return written

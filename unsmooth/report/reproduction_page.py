"""The page of an experiment of a paper: its claims, its figures and its tables, in one HTML file without scripts."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from unsmooth.report.page import environment, style
from unsmooth.report.reproduction_table import claim_rows, notes_of, scale_lines, tables_of

if TYPE_CHECKING:
    from unsmooth.results.reproduction import Reproduction

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
KINDS = {".svg": "svg+xml", ".png": "png"}


def reproduction_page(reproduction: Reproduction, folder: Path) -> str:
    """The HTML page of a reproduction.

    Args:
        reproduction: The experiment of a paper.
        folder: Folder of the figures, which are embedded. Missing ones are left out.
    """
    named = [(reproduction.picture, "published and measured gains")]
    named += [(group.picture, group.title) for group in reproduction.groups]
    embedded_figures = ((embedded(folder / picture), title) for picture, title in named if picture is not None)
    groups = [(group.title, tables_of(group), notes_of(group, figure=False)) for group in reproduction.groups]
    return environment().get_template("reproduction.html.j2").render(
        experiment=reproduction,
        figures=[(picture, title) for picture, title in embedded_figures if picture],
        claims=claim_rows(reproduction),
        groups=groups,
        lines=scale_lines(reproduction),
        style=style("report.css", "reproduction.css"),
        policy=POLICY,
    )  # fmt: skip


def embedded(path: Path) -> str:
    """A figure as a data URI, or "" if there is none."""
    if path.suffix not in KINDS or not path.is_file():
        return ""
    return f"data:image/{KINDS[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"

"""The page of a prescription: recommendation, evidence, search, candidates and budget, without scripts."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from unsmooth.report.figures import save
from unsmooth.report.page import environment, style
from unsmooth.report.prescription_figure import search
from unsmooth.report.prescription_table import candidate_rows
from unsmooth.report.reproduction_page import POLICY

if TYPE_CHECKING:
    from unsmooth.results.prescription import Prescription


def prescription_page(prescription: Prescription) -> str:
    """The HTML page of a prescription. It links to the pages of the diagnosis and of the final trial beside it."""
    headings, rows = candidate_rows(prescription)
    picture = base64.b64encode(save(search(prescription), "svg")).decode() if prescription.candidates else ""
    return environment().get_template("prescription.html.j2").render(
        given=prescription, headings=headings, rows=rows,
        picture=f"data:image/svg+xml;base64,{picture}" if picture else "",
        style=style("report.css", "reproduction.css"), policy=POLICY,
    )  # fmt: skip

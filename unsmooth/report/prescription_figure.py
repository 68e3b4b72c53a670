"""The figure of a prescription: accuracy in the rungs of the search, and the differences of the final comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unsmooth.report import panels
from unsmooth.report.figures import new_figure

if TYPE_CHECKING:
    from unsmooth.results.prescription import Prescription


@rc_context(panels.STYLE)
def search(prescription: Prescription) -> Figure:
    """Held-out accuracy by epochs of each candidate, and the paired difference of each finalist with its interval."""
    figure, (left, right) = new_figure(1, 2, 2.2)
    names = [candidate.name for candidate in prescription.candidates]
    _rungs(left, prescription, names)
    _final(right, prescription, names)
    if names:
        panels.legend(figure, names, False)
    return figure


def _rungs(ax: Axes, prescription: Prescription, names: list[str]) -> None:
    ax.set_title("search: top-1 on held-out training images, %", loc="left", fontsize=7)
    ax.set_xlabel("epochs of each run")
    ax.set_xticks(sorted({rung.epochs for rung in prescription.rungs}))
    ax.margins(x=0.2)
    for i, name in enumerate(names):
        points = [
            (rung.epochs, 100 * run.top1)
            for rung in prescription.rungs
            for run in rung.runs
            if run.name == name and run.top1 is not None
        ]
        if points:
            epochs, values = zip(*points, strict=True)
            ax.plot(epochs, values, **panels.line_style(i), marker=panels.marker(i), markersize=4, linewidth=1.2)
    if not prescription.rungs:
        reason = "one candidate: nothing to choose" if names else "no candidates"
        ax.text(0.5, 0.5, reason, ha="center", va="center", transform=ax.transAxes, color=panels.GREY)
        ax.set_xticks([])
        ax.set_yticks([])


def _final(ax: Axes, prescription: Prescription, names: list[str]) -> None:
    ax.set_title("final comparison: difference in top-1, points", loc="left", fontsize=7)
    ax.axvline(0, color="0.45", linewidth=0.9, zorder=0)
    ax.set_yticks([])
    for row, evidence in enumerate(prescription.evidence):
        difference = evidence.difference
        if difference is None:
            continue
        colour = panels.line_style(names.index(evidence.name))["color"]
        mean, low, high = (100 * value for value in (difference.mean, difference.low, difference.high))
        face = colour if difference.decided else "white"
        ax.errorbar([mean], [row], xerr=[[mean - low], [high - mean]], fmt="D", color=colour, markerfacecolor=face,
                    markersize=4.5, capsize=2.5, linewidth=1.3)  # fmt: skip
        ax.annotate(panels.literal(evidence.name), (mean, row), (0, 7), textcoords="offset points", ha="center",
                    fontsize=6)  # fmt: skip
    ax.set_ylim(len(prescription.evidence) - 0.3, -0.7)
    if not prescription.evidence:
        ax.text(0.5, 0.5, "not needed", ha="center", va="center", transform=ax.transAxes, color=panels.GREY)
        ax.set_xticks([])

"""A diagnosis or a trial for people to look at: one page that opens offline, or figures for print, from JSON alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unsmooth.errors import UnsmoothError, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from unsmooth.results.trial import Trial

FORMATS = ("html", "png", "svg", "pdf")
Diagnoses = Sequence[dict[str, Any]]


def render(diagnoses: Diagnoses, format: str) -> bytes:
    """One report of one or more diagnoses, laid over each other: a page ("html") or the figure of depth for print."""
    if format not in FORMATS:
        raise unknown("format of a report", format, FORMATS)
    if not diagnoses:
        raise UnsmoothError("a report needs at least one diagnosis")
    if format == "html":
        from unsmooth.report.page import page

        return page(list(diagnoses)).encode()
    from unsmooth.report.figures import depth, save

    return save(depth(list(diagnoses)), format)


def diagnosis_figures(diagnoses: Diagnoses) -> dict[str, Figure]:
    """Figures for papers, by name; only those that the data has: depth, similarity, spectrum, rank, bounds,
    jacobian, maps, learned."""
    if not diagnoses:
        raise UnsmoothError("figures need at least one diagnosis")
    from unsmooth.report.figures import all_figures

    return all_figures(list(diagnoses))


def render_trial(trial: Trial, format: str) -> bytes:
    """The report of a trial: a page ("html") or the figure of differences."""
    if format not in FORMATS:
        raise unknown("format of a report", format, FORMATS)
    _check_trial(trial)
    if format == "html":
        from unsmooth.report.trial_page import trial_page

        return trial_page(trial).encode()
    from unsmooth.report.figures import save
    from unsmooth.report.trial_figures import differences

    return save(differences(trial), format)


def figures_of_trial(trial: Trial) -> dict[str, Figure]:
    """Figures of a trial by name, if there is data for them: differences, curves, depth, cost."""
    _check_trial(trial)
    from unsmooth.report.trial_figures import all_figures

    return all_figures(trial)


def _check_trial(trial: Trial) -> None:
    if not trial.arms:
        raise UnsmoothError("the report of a trial needs at least one arm.")

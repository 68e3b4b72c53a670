"""Reports of diagnoses and trials: a page that opens offline, or figures for print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.utils.files import encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.prescription import Prescription
    from unsmooth.results.trial import Trial

FORMATS = ("html", "png", "svg", "pdf")


def render(diagnoses: Sequence[Diagnosis], format: str) -> bytes:
    """One report of one or more diagnoses: a page ("html"), or a figure of all vitals by depth."""
    if format not in FORMATS:
        raise unknown("report format", format, FORMATS)
    if not diagnoses:
        raise UnsmoothError("a report needs at least one diagnosis (got none)")
    if format == "html":
        from unsmooth.report.page import page

        return encode(page(diagnoses))
    from unsmooth.report.figures import depth, save

    return save(depth(diagnoses, [diagnosis.model.name for diagnosis in diagnoses]), format)


def diagnosis_figures(diagnoses: Sequence[Diagnosis]) -> dict[str, Figure]:
    """Figures for print by name.

    depth, similarity, spectrum, first_head_spectrum, rank, bounds, jacobian, learned and learned_by_head; of the first
    sample image maps, first_head_maps, pca, norms, class_attention, rollout and trajectories. Figures without data are
    left out.
    """
    if not diagnoses:
        raise UnsmoothError("figures need at least one diagnosis (got none)")
    from unsmooth.report.figures import vital_figures
    from unsmooth.report.formatting import unique_names
    from unsmooth.report.sample_figures import sample_figures

    names = unique_names(diagnosis.model.name for diagnosis in diagnoses)
    figures = vital_figures(diagnoses, names) | sample_figures(diagnoses, names)
    return {name: figure for name, figure in figures.items() if figure is not None and figure.axes}


def render_trial(trial: Trial, format: str) -> bytes:
    """The report of a trial: a page ("html") or the figure of differences."""
    if format not in FORMATS:
        raise unknown("report format", format, FORMATS)
    _check_trial(trial)
    if format == "html":
        from unsmooth.report.trial_page import trial_page

        return encode(trial_page(trial))
    from unsmooth.report.figures import save
    from unsmooth.report.trial_figures import differences

    return save(differences(trial), format)


def render_prescription(prescription: Prescription, format: str) -> bytes:
    """The report of a prescription: a page ("html") or the figure of the search."""
    if format not in FORMATS:
        raise unknown("report format", format, FORMATS)
    if format == "html":
        from unsmooth.report.prescription_page import prescription_page

        return encode(prescription_page(prescription))
    from unsmooth.report.figures import save
    from unsmooth.report.prescription_figure import search

    return save(search(prescription), format)


def figures_of_trial(trial: Trial) -> dict[str, Figure]:
    """Figures of a trial by name, if there is data for them: differences, curves, depth, cost."""
    _check_trial(trial)
    from unsmooth.report.trial_figures import all_figures

    return all_figures(trial)


def _check_trial(trial: Trial) -> None:
    if not trial.arms:
        raise UnsmoothError("the report of a trial needs at least one arm.")

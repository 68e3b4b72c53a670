"""How each type of result is shown: the `Renderer` of `unsmooth.rendering`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsmooth.report import (
    bench_table,
    evaluation_table,
    frames,
    prescription_table,
    render,
    reproduction_table,
    tables,
    token_table,
    training_text,
    trial_table,
)
from unsmooth.results.bench import Bench
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.evaluation import Evaluation, TokenScores
from unsmooth.results.prescription import Prescription
from unsmooth.results.reproduction import Reproduction
from unsmooth.results.training import TrainingResult
from unsmooth.results.trial import Trial
from unsmooth.results.verdict import Finding
from unsmooth.utils.files import encode
from unsmooth.utils.notebook import NO_NETWORK

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


@singledispatch
def text(result: Any) -> str:
    """The result as a table of text."""
    raise TypeError(f"{type(result).__name__} has no text")


text.register(Bench, bench_table.as_text)
text.register(Diagnosis, tables.as_text)
text.register(Evaluation, evaluation_table.as_text)
text.register(Prescription, prescription_table.as_text)
text.register(Reproduction, reproduction_table.as_markdown)
text.register(TokenScores, token_table.as_text)
text.register(TrainingResult, training_text.as_text)
text.register(Trial, trial_table.as_text)


@singledispatch
def report(result: Any, format: str, *context: Any) -> bytes:
    """The page of a result ("html"), or its figure."""
    raise TypeError(f"{type(result).__name__} has no report")


report.register(Prescription, render.render_prescription)
report.register(Trial, render.render_trial)


@report.register(Diagnosis)
def _(result: Diagnosis, format: str, *others: Diagnosis) -> bytes:
    return render.render([result, *others], format)


@report.register(Finding)
def _(result: Finding, format: str) -> bytes:
    from unsmooth.report.page import finding_page

    return encode(finding_page(result, NO_NETWORK))


@report.register(Reproduction)
def _(result: Reproduction, format: str, folder: Path) -> bytes:
    from unsmooth.report.reproduction_page import reproduction_page

    return encode(reproduction_page(result, folder))


@singledispatch
def frame(result: Any, detailed: bool = False) -> pandas.DataFrame:
    """The result as a pandas table."""
    raise TypeError(f"{type(result).__name__} has no table")


frame.register(Diagnosis, frames.diagnosis_frame)
frame.register(Trial, frames.trial_frame)


@frame.register(Finding)
def _(result: Finding, detailed: bool = False) -> pandas.DataFrame:
    return frames.finding_frame(result)


def plot(
    diagnoses: Sequence[Diagnosis], names: Sequence[str], vital: str, parts: str | Sequence[str] | None, ax: Axes | None
) -> Axes:
    """A vital of diagnoses by block."""
    from unsmooth.report.axis import plot_vital

    return plot_vital(diagnoses, names, vital, parts, ax)

"""unsmooth paper: the tables, figures and theorems of the papers, each run by one command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from typer import Argument, Context, Option

from unsmooth.cli.options import DIR, INT, takes_settings
from unsmooth.cli.recipe_options import recipe_fields
from unsmooth.cli.terminal import command_line, echo, emit, run_bars, show
from unsmooth.errors import unknown
from unsmooth.papers.request import RunRequest
from unsmooth.report.terminal import WideTable

if TYPE_CHECKING:
    from unsmooth.papers.catalogue import Experiment, Paper, UnavailableExperiment


@takes_settings(RunRequest, without=("out", "checkpoints", "jobs", "overrides", "on_progress", "on_stage", "command"))
def paper(
    context: Context,
    name: Annotated[
        str, Argument(metavar="PAPER[/EXPERIMENT]", show_default=False, help="paper to list, or experiment to run")
    ] = "",
    *,
    settings: RunRequest,
    checkpoint: Annotated[
        list[Path],
        Option(metavar="PATH", show_default=False, help="weights of each model, or those that every arm starts from"),
    ] = [],  # noqa: B006
    jobs: Annotated[
        int | None,
        Option(metavar=INT, help="runs trained at the same time (default: 1; with --small: one per core)"),
    ] = None,
    out: Annotated[
        Path | None, Option(metavar=DIR, help="directory to write to (default: papers/PAPER/EXPERIMENT)")
    ] = None,
    json: Annotated[bool, Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """List the experiments of the papers, or run one of them.

    Without a name, all papers are listed; with the name of a paper, its experiments. A run compares published with
    measured values: unsmooth paper anti_oversmoothing/table1 --small. Every field of the recipe is an option too:
    --epochs 10. The same command resumes an interrupted run.
    """
    if "/" not in name:
        show(_catalogue(name))
        return
    from unsmooth.papers.run import reproduce
    from unsmooth.report.reproduction_table import as_rich

    folder = out or Path("papers") / name
    with run_bars() as bars:
        default_jobs = _cores() if settings.small else 1
        request = replace(
            settings, out=folder, checkpoints=checkpoint, jobs=default_jobs if jobs is None else jobs,
            overrides=recipe_fields(context), on_progress=bars.on_progress, on_stage=bars.on_stage,
            command=command_line(context),
        )  # fmt: skip
        reproduction = reproduce(name, request)
    if json:
        emit(reproduction.to_json())
    else:
        show(as_rich(reproduction))
    echo(f"wrote {folder / 'report.html'}, {folder / 'paper.md'} and {folder / 'paper.json'}")


def _cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _catalogue(name: str) -> Iterator[RenderableType]:
    """All papers, or the one with this name in detail."""
    from unsmooth.papers.catalogue import list_papers

    papers = list_papers()
    selected = [paper for paper in papers if paper.id == name.replace("-", "_")] if name else papers
    if not selected:
        raise unknown("paper", name, [paper.id for paper in papers])
    for paper in selected:
        yield f"\n[bold]{paper.id}[/bold]  {escape(paper.title)} ({escape(paper.venue)})"
        yield _details(paper) if name else _overview(paper)
        if paper.note:
            yield f"[dim]{escape(paper.note)}[/dim]"
    first = selected[0]
    details = "" if name else f"Details of one paper: unsmooth paper {first.id}. "
    yield f"\n[dim]{details}Run an experiment: unsmooth paper {first.experiments()[0].id} --small[/dim]"


def _overview(paper: Paper) -> RenderableType:
    table = WideTable("experiment", "in the paper", "state", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for experiment in _experiments(paper):
        table.add_row(experiment.name, escape(experiment.source), escape(experiment.state))
    return table


def _details(paper: Paper) -> RenderableType:
    lines: list[RenderableType] = []
    for experiment in _experiments(paper):
        lines.append(f"[cyan]{experiment.name}[/cyan]  {escape(experiment.source)}: {escape(experiment.title)}")
        for line in _lines(experiment):
            lines.append(Padding(line, (0, 0, 0, 4)))
    return Group(*lines)


def _experiments(paper: Paper) -> list[Experiment | UnavailableExperiment]:
    """Experiments that can be run, then those that cannot."""
    return [*paper.experiments(), *paper.unavailable]


def _lines(experiment: Experiment | UnavailableExperiment) -> list[str]:
    """Published results, groups of arms, and state."""
    from unsmooth.papers.catalogue import Experiment

    state = f"[dim]{escape(experiment.state)}[/dim]"
    if not isinstance(experiment, Experiment):
        return [state]
    groups = [f"group {escape(repr(group.name))}: {escape('; '.join(group.names()))}" for group in experiment.groups]
    return [escape(experiment.shows), *groups, state]

"""unsmooth paper: the tables, figures and theorems of the papers, each by one command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from typer import Argument, Context, Option

from unsmooth.cli.recipe_options import recipe_fields
from unsmooth.cli.terminal import command_line, echo, run_bars, show
from unsmooth.cli.train import DATA, DIR
from unsmooth.errors import UnsmoothError, unknown
from unsmooth.papers.catalogue import Experiment, Paper, UnavailableExperiment, list_papers
from unsmooth.papers.request import RunRequest
from unsmooth.papers.run import reproduce
from unsmooth.report.reproduction_table import as_rich


def paper(
    context: Context,
    name: Annotated[
        str, Argument(metavar="[PAPER[/PART]]", help="nothing: the list; a paper: its parts; a part: run it")
    ] = "",
    small: Annotated[bool, Option("--small", help="small hosts and data, minutes on a laptop")] = False,
    data: Annotated[str | None, Option(metavar=DATA, help="images; without, --small takes scanned digits")] = None,
    out: Annotated[Path | None, Option(metavar=DIR, help="its folder; without: papers/PAPER/PART")] = None,
    only: Annotated[str, Option(metavar="GROUP", help="one group of a table: see the list")] = "",
    spec: Annotated[str, Option(help="your own model under a figure of a paper")] = "",
    checkpoint: Annotated[list[Path], Option(help="weights: of each model, or where all arms start")] = [],  # noqa: B006
    pretrained: Annotated[bool, Option("--pretrained", help="weights of the hosts' libraries")] = False,
    seeds: Annotated[int | None, Option(help="runs of each arm")] = None,
    jobs: Annotated[int | None, Option(help="runs at a time; without: 1, with --small one on each core")] = None,
    workers: Annotated[int, Option(help="processes that read images, for each run")] = 0,
    device: Annotated[str, Option(help="cpu, cuda or cuda:1; without: a GPU where there is one")] = "",
    data_dir: Annotated[Path | None, Option(metavar=DIR, help="where timm looks for the files of a data set")] = None,
    json: Annotated[bool, Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """List what the papers show and its state, or run a part of one: published beside measured.

    unsmooth paper · unsmooth paper anti_oversmoothing · unsmooth paper anti_oversmoothing/table1 --small
    Recipe fields as in train: --epochs 10. The same command again goes on where it was cut.
    """
    if "/" not in name:
        _list(name)
        return
    folder = out or Path("papers") / name
    if seeds is not None and seeds < 1:
        raise UnsmoothError(f"seeds must be at least 1, not {seeds}")
    with run_bars() as bars:
        found = reproduce(name, RunRequest(
            out=folder, small=small, data=data, data_dir=data_dir, only=only, spec=spec, checkpoints=checkpoint,
            pretrained=pretrained, seeds=seeds, jobs=jobs or (cores() if small else 1), workers=workers, device=device,
            overrides=recipe_fields(context), on_progress=bars.on_progress, on_stage=bars.on_stage, command=command_line(),
        ))  # fmt: skip
    if json:
        print(found.to_json())  # noqa: T201
    else:
        show(as_rich(found))
    echo(f"wrote {folder / 'paper.md'} and {folder / 'paper.json'}")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _list(name: str) -> None:
    papers = list_papers()
    chosen = [one for one in papers if one.id == name.replace("-", "_")] if name else papers
    if not chosen:
        raise unknown("paper", name, [one.id for one in papers])
    console = Console()
    for one in chosen:
        console.print(f"\n[bold]{one.id}[/bold]  {escape(one.title)} ({escape(one.venue)})", highlight=False)
        console.print((_details if name else _overview)(one), highlight=False)
        if one.note:
            console.print(f"[dim]{escape(one.note)}[/dim]", highlight=False)
    first = chosen[0].experiments()[0]
    more = "" if name else f"unsmooth paper {chosen[0].id} tells more of one. "
    console.print(f"\n[dim]{more}Run a part: unsmooth paper {first.id} --small[/dim]", highlight=False)


def _overview(one: Paper) -> RenderableType:
    table = Table("part", "in the paper", "state", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for part in parts_of(one):
        table.add_row(part.name, escape(part.source), escape(part.state))
    return table


def _details(one: Paper) -> RenderableType:
    lines: list[RenderableType] = []
    for part in parts_of(one):
        about = [f"[cyan]{part.name}[/cyan]  {escape(part.source)}: {escape(part.title)}"]
        if isinstance(part, Experiment):
            about += [
                escape(part.shows),
                *(f"group {escape(repr(g.name))}: {escape(', '.join(g.names()))}" for g in part.groups),
            ]
        about.append(f"[dim]{escape(part.state)}[/dim]")
        lines += [Padding(line, (0, 0, 0, 0 if i == 0 else 4)) for i, line in enumerate(about)]
    return Group(*lines)


def parts_of(one: Paper) -> list[Experiment | UnavailableExperiment]:
    return [*one.experiments(), *one.unavailable]

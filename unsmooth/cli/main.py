"""The command line. It only reads arguments and prints: all work is in the library."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from unsmooth import remedies
from unsmooth.cli.bench import bench
from unsmooth.cli.compare import compare
from unsmooth.cli.demo import demo as run_demo
from unsmooth.cli.evaluate import evaluate
from unsmooth.cli.import_ import import_
from unsmooth.cli.paper import paper
from unsmooth.cli.publish import check_target, write_report
from unsmooth.cli.recipe_options import TakesRecipe
from unsmooth.cli.terminal import command_line, echo, progress_bar, remember
from unsmooth.cli.train import train
from unsmooth.data.image_batches import LIMIT
from unsmooth.diagnosis import registry as vitals
from unsmooth.diagnosis.diagnose import diagnose as run_diagnosis
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import Recipe, list_recipes, load_recipe
from unsmooth.report.tables import as_rich
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.surgery.check import Checkup, checkup
from unsmooth.training.run import Interrupted
from unsmooth.utils.options import describe

app = typer.Typer(
    help="Vision transformers whose tokens collapse: what helps, on the model you already have.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
STYLE: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "collapse_padding": True}  # fits 80 columns
_UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]  # click's, or typer's copy of it


@app.command("list")
def list_(what: str = typer.Argument("remedies", help="what to list: remedies, vitals or recipes")) -> None:
    """List the remedies with their options and claims, the vitals with their definitions, or the recipes' fields."""
    listings = {"remedies": _list_remedies, "vitals": _list_vitals, "recipes": _list_recipes}
    if what not in listings:
        raise UnsmoothError(f"cannot list {what!r}; try: unsmooth list {' or unsmooth list '.join(listings)}")
    listings[what]()


def _list_vitals() -> None:
    for key in vitals.list_vitals():
        vital = vitals.get(key)
        asked = "" if vital.default else ", on request"
        console.print(f"[bold]{key}[/bold]  {escape(vital.title)} ({vital.family}{asked})", highlight=False)
        facts = {"formula": vital.formula, "reading": vital.reading, **dict(vital.parts)}
        if vital.accepts:
            facts["accepts"] = f"attention that is {', '.join(vital.accepts)}"
        if vital.sample is not None:
            facts["sample"] = f"at most {vital.sample} images"
        for label, text in facts.items():
            console.print(Padding(f"[dim]{escape(label):<11}[/dim] {escape(text)}", (0, 0, 0, 4)), highlight=False)


def _list_recipes() -> None:
    recipes = {name: load_recipe(name).to_json() for name in list_recipes()}
    for field in describe(Recipe):
        console.print(f"[bold]{field.name}[/bold]  {escape(field.help)}", highlight=False)
        values = "  ".join(f"{name} {_value(recipe[field.name]) or '–'}" for name, recipe in recipes.items())
        console.print(Padding(f"[dim]{values}[/dim]", (0, 0, 0, 4)), highlight=False)
    console.print("\nOn the command line: unsmooth train … --recipe small --batch-size 32 --lr 2e-3", highlight=False)


def _value(value: Any) -> str:
    return ", ".join(f"{v:g}" for v in value) if isinstance(value, list) else escape(f"{value}".lower())


def _list_remedies() -> None:
    for key in remedies.list_remedies():
        remedy = remedies.get(key)
        console.print(f"[bold]{key}[/bold]  {remedy.title}, on {remedy.acts_on}", highlight=False)
        for label, text in remedies.facts(remedy).items():
            console.print(Padding(f"[dim]{label:<11}[/dim]{escape(text)}", (0, 0, 0, 4)), highlight=False)
    console.print(
        "\nWrite them behind a host: unsmooth check 'deit_tiny_patch16_224+attn_scale(blocks=6:)'", highlight=False
    )


@app.command()
def check(spec: str = typer.Argument(help="a model spec: HOST or HOST+remedy(option=value)")) -> None:
    """Say which remedies work on a model, block by block, and why the rest does not."""
    _print_checkup(checkup(spec))


@app.command()
def diagnose(
    specs: list[str] = typer.Argument(metavar="SPEC…", help="model specs, saved folders, or .json files of diagnoses"),
    checkpoint: list[Path] = typer.Option([], help="weights to load, once for each spec, in order"),
    images: str = typer.Option(
        None, metavar="FOLDER|DATASET|FILE.npz", help="images; without: photographs that come along"
    ),
    data_dir: Path = typer.Option(None, metavar="DIR", help="where timm looks for the files of a data set"),
    out: Path = typer.Option(None, metavar="DIR", help="write report and JSON there"),
    json: bool = typer.Option(False, "--json", help="print JSON instead of a table"),
    vitals: str = typer.Option("default", help="names with commas, or default, or all: see unsmooth list vitals"),
    blocks: str = typer.Option(None, help="some blocks only: 6:, 0,3 or -1"),
    format: str = typer.Option("html", help="of the report in DIR: html, or figures as png, svg or pdf"),
    prefix: bool = typer.Option(True, help="class and register tokens in token vitals"),
    limit: int = typer.Option(LIMIT, help="look at so many images at most, spread over the data"),
    batch_size: int = typer.Option(None, help="images at a time; chosen by the size of the maps"),
    reference: bool = typer.Option(True, help="look at the same architecture at random start too"),
) -> None:
    """Say whether a model's tokens collapse, where, why, or that nothing is wrong."""
    check_target(out, format)
    if len(checkpoint) not in (0, len(specs)):
        raise UnsmoothError(f"{len(specs)} specs and {len(checkpoint)} checkpoints: give one for each spec, or none")
    found = []
    for i, spec in enumerate(specs):
        if spec.endswith(".json"):
            found.append(Diagnosis.from_json(spec))
            continue
        with progress_bar(spec) as progress:
            found.append(
                run_diagnosis(
                    spec,
                    images,
                    vitals,
                    blocks,
                    checkpoint=checkpoint[i] if checkpoint else None,
                    data_dir=data_dir,
                    prefix=prefix,
                    limit=limit,
                    batch_size=batch_size,
                    reference=reference,
                    progress=progress,
                    command=command_line(),
                )
            )
    if json:
        print(found[0].to_json() if len(found) == 1 else f"[{','.join(d.to_json() for d in found)}]")  # noqa: T201
    else:
        for diagnosis in found:
            for piece in as_rich(diagnosis):
                console.print(piece, highlight=False)
    if out is not None:
        for path in write_report(found, out, format):
            echo(f"wrote {path}")


@app.command()
def demo(
    out: Path = typer.Option(Path("demo"), metavar="DIR", help="the trial's folder"),
    jobs: int = typer.Option(2, help="runs at the same time"),
) -> None:
    """Train a deep, narrow ViT on digits, plain and with remedies, diagnose and compare them. About two minutes."""
    run_demo(out, jobs)


app.command(cls=TakesRecipe)(train)
app.command()(evaluate)
app.command(cls=TakesRecipe)(compare)
app.command(cls=TakesRecipe)(paper)
app.command()(bench)
app.command("import")(import_)


def _print_checkup(result: Checkup) -> None:
    console.print(f"[bold]{escape(result.spec)}[/bold]: {result.summary}", highlight=False)
    blocks = Table("blocks", "attention", "map", "heads", "tokens", "channels", "class token", **STYLE)
    for row in result.anatomy_rows():
        blocks.add_row(*row)
    console.print(blocks)
    _print_notes(result.skipped)
    table = Table(**STYLE)
    table.add_column("remedy", overflow="fold")
    table.add_column("blocks", overflow="fold")
    for heading in ("parameters", "MFLOPs"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("outputs", no_wrap=True)
    for row in result.remedy_rows():
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    _print_notes(result.reasons())
    console.print(
        "parameters and MFLOPs: what it adds, for one image. outputs: whether a trained host's change at once.",
        style="dim",
        highlight=False,
    )


def _print_notes(lines: Sequence[str]) -> None:
    """Each line whole, wrapped at the width of the terminal, and an empty one behind them."""
    for line in lines:
        console.print(escape(line), highlight=False)
    if lines:
        console.print()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code; a user's mistake is one line on standard error, no traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    remember(given)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: echo(f"note: {message}")
        try:
            return app(args=given, prog_name="unsmooth", standalone_mode=False) or 0
        except Interrupted as error:
            if os.environ.get("RANK", "0") == "0":  # of several processes, the first one speaks
                echo(f"unsmooth: {error}")
            return 130
        except UnsmoothError as error:
            mistake = str(error)
        except KeyboardInterrupt:
            echo("unsmooth: stopped")
            return 130
        except _UsageError as error:
            mistake = f"{error.format_message().rstrip('.')}; try: unsmooth --help"  # type: ignore[attr-defined]
    echo(f"unsmooth: {mistake}")
    return 2

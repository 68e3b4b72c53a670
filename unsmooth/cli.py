"""The command line. It only reads arguments and prints: all work is in the library."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from unsmooth import remedies
from unsmooth.check import Checkup, checkup
from unsmooth.errors import UnsmoothError

app = typer.Typer(
    help="Vision transformers whose tokens collapse: what helps, on the model you already have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


@app.command("list")
def list_(what: str = typer.Argument("remedies", help="what to list: remedies")) -> None:
    """List the remedies, with their options and what they claim."""
    if what != "remedies":
        raise UnsmoothError(f"cannot list {what!r}; try: unsmooth list remedies")
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
def demo() -> None:
    """Apply every remedy to a small host on real digits, and print what changed."""
    from unsmooth.demo import main as run_demo

    run_demo()


def _print_checkup(result: Checkup) -> None:
    console.print(f"[bold]{escape(result.spec)}[/bold]: {result.summary}")
    blocks = Table("blocks", "attention", "map", "heads", "tokens", "channels", "class token", box=box.SIMPLE_HEAD)
    for row in result.anatomy_rows():
        blocks.add_row(*row)
    console.print(blocks)
    for line in result.skipped:
        console.print(f"  {escape(line)}")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("remedy", overflow="fold", min_width=18)
    table.add_column("blocks")
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("MFLOPs", justify="right", no_wrap=True)
    table.add_column("outputs")
    table.add_column("why not", overflow="fold")
    for row in result.remedy_rows():
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    note = (
        "parameters and MFLOPs are what it adds, for one image; outputs: whether applying it changes a trained host's"
    )
    console.print(note, style="dim")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake is one line on standard error, not a traceback."""
    warnings.showwarning = lambda message, *_, **__: print(f"note: {message}", file=sys.stderr)  # noqa: T201
    try:
        app(args=list(arguments) if arguments is not None else None, standalone_mode=True)
    except UnsmoothError as error:
        print(f"unsmooth: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)

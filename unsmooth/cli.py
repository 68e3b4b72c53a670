"""The command line. It only reads arguments and prints: all work is in the library."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

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
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
STYLE: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "collapse_padding": True}  # fits 80 columns
_UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]  # click's, or typer's copy of it


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
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"note: {message}", file=sys.stderr)  # noqa: T201
        try:
            return app(args=given, prog_name="unsmooth", standalone_mode=False) or 0
        except UnsmoothError as error:
            mistake = str(error)
        except _UsageError as error:
            mistake = f"{error.format_message().rstrip('.')}; try: unsmooth --help"  # type: ignore[attr-defined]
    print(f"unsmooth: {mistake}", file=sys.stderr)  # noqa: T201
    return 2

"""unsmooth check: which remedies apply to a model, and why others do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from typer import Argument, Option

from unsmooth.cli.terminal import show
from unsmooth.report.terminal import WideTable

if TYPE_CHECKING:
    from unsmooth.surgery.check import Checkup

STYLE: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "collapse_padding": True}  # fits 80 columns


def check(
    spec: Annotated[str, Argument(metavar="SPEC", help="model spec: HOST or HOST+remedy(option=value)")],
    device: Annotated[
        str | None,
        Option(
            metavar="DEVICE", show_default=False,
            help="device: cpu, cuda, cuda:N or mps (default: cuda or mps if available)",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Show which remedies apply to a model, block by block.

    Reasons why a remedy does not apply are listed below the table.
    """
    from unsmooth.surgery.check import checkup

    show(_tables(checkup(spec, device)))


def _tables(result: Checkup) -> Iterator[RenderableType]:
    yield f"[bold]{escape(result.spec)}[/bold]: {result.summary}"
    blocks = WideTable("blocks", "attention", "map", "heads", "tokens", "channels", "class token", **STYLE)
    for row in result.anatomy_rows():
        blocks.add_row(*row)
    yield blocks
    yield from _notes(result.skipped)
    table = WideTable(**STYLE)
    table.add_column("remedy", overflow="fold")
    table.add_column("blocks", overflow="fold")
    for heading in ("parameters", "MFLOPs"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("outputs", no_wrap=True)
    for row in result.remedy_rows():
        table.add_row(*(escape(cell) for cell in row))
    yield table
    yield from _notes(result.reasons())
    yield (
        "[dim]parameters, MFLOPs: added by the remedy, per image. outputs: whether applying it changes the outputs "
        "of a trained host.[/dim]"
    )


def _notes(lines: Iterable[str]) -> Iterator[RenderableType]:
    """The lines, followed by an empty one."""
    for line in lines:
        yield escape(line)
    if lines:
        yield ""

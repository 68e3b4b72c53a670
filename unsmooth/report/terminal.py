"""Tables for the terminal, and as plain text."""

from __future__ import annotations

import copy
import dataclasses
import io
from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Column, Table

UNLIMITED = 10_000  # characters


class WideTable(Table):
    """A table that is shown in parts below each other where it is too wide, so that no cell is cut.

    Each part repeats the first column. Text columns wrap; numbers, which are justified to the right, do not.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in self._parts(console, options):
            yield from part.render_whole(console, options)

    def render_whole(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return super().__rich_console__(console, options)

    def _parts(self, console: Console, options: ConsoleOptions) -> Iterator[WideTable]:
        unlimited = options.update(max_width=UNLIMITED)
        first, *others = (dataclasses.replace(c, no_wrap=_unbroken(c)) for c in self.columns)
        start = self._width(console, unlimited, first) + (2 if self.show_edge else 0)
        taken, used = [first], start
        for column in others:
            width = 1 + self._width(console, unlimited, column)  # with the line before it
            if len(taken) > 1 and used + width > options.max_width:
                yield self._with(taken)
                taken, used = [first], start
            taken.append(column)
            used += width
        yield self._with(taken)

    def _width(self, console: Console, options: ConsoleOptions, column: Column) -> int:
        """Characters that a column needs."""
        measured = self._measure_column(console, options, column)
        return measured.maximum if _unbroken(column) else measured.minimum

    def _with(self, columns: list[Column]) -> WideTable:
        part = copy.copy(self)
        part.columns = [dataclasses.replace(column, _index=i) for i, column in enumerate(columns)]
        return part


def _unbroken(column: Column) -> bool:
    return column.no_wrap or column.justify == "right"


def plain_text(pieces: Iterable[RenderableType], width: int = 100) -> str:
    """Text without colours or trailing spaces."""
    file = io.StringIO()
    console = Console(file=file, width=width, no_color=True, force_terminal=False)
    for piece in pieces:
        console.print(piece, highlight=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

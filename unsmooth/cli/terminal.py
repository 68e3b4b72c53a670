"""What the command line shows beside results, on standard error: bars with the time left on a terminal, and plain lines
elsewhere."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from unsmooth.report.metrics import format_scores

_given: list[str] = []


def remember(arguments: Sequence[str]) -> None:
    """Keep what was typed, for results that say which command made them."""
    _given[:] = arguments


def command_line() -> str:
    return shlex.join(["unsmooth", *_given])


def echo(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def show(pieces: Iterable[RenderableType]) -> None:
    """Print tables and text on standard output, as wide as the terminal is."""
    console = Console()
    for piece in pieces:
        console.print(piece, highlight=False)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar that is told (images done, images in all); it vanishes at its end, and is not drawn into a file."""
    with _bars() as bars:
        task = bars.add_task(escape(title), total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


class RunBars:
    """Runs that go on, each with a bar on a terminal, each with a line an epoch elsewhere."""

    def __init__(self, bars: Progress) -> None:
        self.bars, self.tasks, self.begun = bars, dict[str, TaskID](), dict[str, float]()

    def on_progress(self, name: str, done: int, total: int, line: Mapping[str, Any] | None = None) -> None:
        """News of a run: steps done, steps in all, and the metrics of an epoch that ended."""
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(escape(name), total=total, completed=done)
            self.begun[name] = time.monotonic()
        title = f"{escape(name)}  {_short(line)}" if line is not None else None
        self.bars.update(self.tasks[name], completed=done, total=total, description=title)
        if self.bars.disable and line is not None:
            echo(f"{name}: epoch {line['epoch']}, {_short(line)}, {time.monotonic() - self.begun[name]:.0f} s")
        if done == total and len(self.tasks) > 1:  # a finished run makes room for the next one
            self.bars.update(self.tasks[name], visible=False)

    def on_stage(self, text: str) -> None:
        if self.bars.disable:
            echo(text)
        else:
            self.bars.console.print(f"[dim]{escape(text)}[/dim]", highlight=False)


@contextmanager
def run_bars() -> Iterator[RunBars]:
    with _bars() as bars:
        yield RunBars(bars)


def _bars() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _short(line: Mapping[str, Any]) -> str:
    loss = f"loss {line['train_loss']:.3f}"
    measured = format_scores({name: line[name] for name in line if name != "val_loss"}, decimals=1).partition(",")[0]
    return f"{loss}, {measured}" if measured else loss

"""Output of the commands: results on standard output; progress, notes and errors on standard error."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.segment import Segment
from typer import Context

from unsmooth.errors import UnsmoothError, printable

if TYPE_CHECKING:
    from unsmooth.results.training import EpochMetrics

MAX_NAME = 80  # characters of a file name
_KEY = "unsmooth.command_line"


def keep_command_line(context: Context, arguments: Sequence[str]) -> None:
    """Store the command line on the context of the group; the context of each command shares it."""
    context.meta[_KEY] = printable(shlex.join(["unsmooth", *arguments]))


def command_line(context: Context) -> str:
    """The command line, which results record."""
    return str(context.meta.get(_KEY, "unsmooth"))


class _Console(Console):
    """A console that shows names of files and models as text: no control character of theirs reaches the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        raise  # rich calls it while it handles the error, which `_output` handles


def escape_unencodable() -> None:
    """Let both streams escape what their encoding does not have, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):  # a replaced, closed or missing stream
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def echo(text: str) -> None:
    """Print one line on standard error, if it is open."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(printable(text), file=sys.stderr, flush=True)  # noqa: T201


def emit(text: str) -> None:
    """Print JSON on standard output."""
    with _output():
        print(text)  # noqa: T201


def show(pieces: Iterable[RenderableType]) -> None:
    """Print tables and text with rich markup on standard output, as wide as the terminal."""
    from unsmooth.report.tables import Line

    with _output():
        console = _Console()
        for piece in pieces:
            console.print(piece, highlight=False, soft_wrap=isinstance(piece, Line))  # commands are copied as one line


@contextmanager
def _output() -> Iterator[None]:
    """Print on standard output. A closed pipe (`head`) is ignored; a full disk raises."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with suppress(OSError, ValueError, AttributeError):  # what is buffered would raise again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise UnsmoothError(
                f"cannot write to standard output: {error.strerror}. Redirect it to another file."
            ) from error


def file_name(model: str) -> str:
    """The name of a model with characters that every file system accepts. A longer name ends in a digest."""
    name = re.sub(r"[^A-Za-z0-9.+=-]+", "_", model).strip("_") or "model"
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}-{hashlib.sha256(model.encode(errors='replace')).hexdigest()[:8]}"


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float, float | None], None]]:
    """A bar that is updated with (done, total) and removed at its end; without a terminal, a line every few seconds."""
    from unsmooth.utils.progress import show_progress

    with show_progress(log=True) as report:
        report(title, 0, None)
        yield lambda done, total: report(title, done, total)


class RunBars:
    """Progress of training runs: a bar per run and one of all runs on a terminal, a line per epoch elsewhere."""

    def __init__(self, bars: Progress | None) -> None:
        from unsmooth.utils.progress import StageText

        self.bars, self.tasks, self.started = bars, dict[str, TaskID](), dict[str, float]()
        self.runs, self.of_all = StageText(), ""

    def on_progress(self, name: str, done: int, total: int, line: EpochMetrics | None = None) -> None:
        """Update the bar of a run: its steps, and its metrics at the end of an epoch."""
        self.started.setdefault(name, time.monotonic())
        if self.bars is not None:
            title = f"{name}  {_summary(line)}" if line is not None else None
            self._update(self.bars, name, done, total, title)
            if done == total and len(self.tasks) > 1:  # make room for the next run
                self.bars.update(self.tasks[name], visible=False)
        elif line is not None:
            seconds = time.monotonic() - self.started[name]
            echo(f"{name}: epoch {line.epoch}, {_summary(line)}, {seconds:.0f} s{self.of_all}")

    def on_runs(self, stage: str, done: float, total: float | None) -> None:
        """Update the bar of all runs."""
        if self.bars is not None:
            self._update(self.bars, stage, done, total)
        elif (total or 0) > 1:
            self.of_all = f" ({self.runs.line(stage, done, total)})"

    def _update(self, bars: Progress, name: str, done: float, total: float | None, title: str | None = None) -> None:
        if name not in self.tasks:
            self.tasks[name] = bars.add_task(printable(name), total=total)
        shown = None if title is None else printable(title)
        bars.update(self.tasks[name], completed=done, total=total, description=shown)

    def on_stage(self, text: str) -> None:
        """Print the stage that starts."""
        if self.bars is None:
            echo(text)
        else:
            self.bars.console.print(f"[dim]{escape(text)}[/dim]", highlight=False)


@contextmanager
def run_bars() -> Iterator[RunBars]:
    """Bars of training runs, removed at the end."""
    from unsmooth.utils.progress import on_terminal, terminal_bars

    if not on_terminal():
        yield RunBars(None)
        return
    with terminal_bars(_Console(file=cast(TextIO, _Lasting(sys.stderr)))) as bars:
        yield RunBars(bars)


class _Lasting:
    """Standard error for the bars of a run that outlives its terminal: what cannot be written is lost."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self.stream.flush()


def _summary(line: EpochMetrics) -> str:
    """Training loss and first metric of an epoch."""
    from unsmooth.report.metrics import format_scores

    loss = f"loss {line['train_loss']:.3f}"
    scores = {name: value for name, value in line.metrics.items() if name != "val_loss"}
    metric = format_scores(scores, decimals=1).partition(",")[0]
    return f"{loss}, {metric}" if metric else loss

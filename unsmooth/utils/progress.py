"""Progress of a long command: one callback, and its displays on a terminal, in a notebook and in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from unsmooth.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

# Arguments: name of a stage, number of completed steps, and their total (None if unknown). A stage ends when it reaches
# its total, or when a stage without a total is followed by another one.
Progress = Callable[[str, float, float | None], None]

EVERY = 5.0  # seconds between two lines of a log
REDRAW = 0.2  # seconds between two updates of a notebook


@contextmanager
def show_progress(progress: Progress | bool | None = None, log: bool = False) -> Iterator[Progress]:
    """The callback that a long function reports to.

    Args:
        progress: A callback to use as it is; False for none; None for bars on a terminal or a line in a notebook, and
            nothing elsewhere; True for a log where None shows nothing.
        log: Whether None, too, gives a log on standard error where there is neither a terminal nor a notebook.
    """
    if callable(progress):
        yield progress
    elif progress is False:
        yield _silent
    elif in_notebook():
        line = NotebookLine()
        try:
            yield line
        finally:
            line.close()
    elif on_terminal():
        with terminal_bars() as bars:
            yield StageBars(bars)
    elif progress or log:
        yield StageLog()
    else:
        yield _silent


def _silent(stage: str, done: float, total: float | None = None) -> None: ...


def on_terminal() -> bool:
    """Whether standard error is a terminal that can redraw lines."""
    from rich.console import Console

    try:
        return sys.stderr is not None and sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal
    except ValueError:  # it is closed
        return False


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def terminal_bars(console: Any = None) -> RichProgress:
    """Bars on standard error with counts and the time left, which are removed at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    return RichProgress(*columns, console=console or Console(stderr=True), transient=True)


class StageBars:
    """A bar per stage."""

    def __init__(self, bars: RichProgress) -> None:
        self.bars, self.last = bars, ""
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: float, total: float | None = None) -> None:
        if stage not in self.tasks:
            if self.last and self.bars.tasks[self.tasks[self.last]].total is None:
                self.bars.update(self.tasks[self.last], completed=1, total=1)
            self.tasks[stage] = self.bars.add_task(printable(stage), total=total)
            self.last = stage
        self.bars.update(self.tasks[stage], completed=done, total=total, refresh=done == total)


class StageText:
    """Progress as one line of text: "images: 16 of 32, 5 s left"."""

    def __init__(self) -> None:
        self.stage, self.started, self.first = "", 0.0, 0.0

    def line(self, stage: str, done: float, total: float | None = None) -> str:
        now = time.monotonic()
        if stage != self.stage:
            self.stage, self.started, self.first = stage, now, done
        if total is None:
            return printable(f"{stage}: {int(done)}" if done else stage)
        left = (now - self.started) * (total - done) / (done - self.first) if done > self.first else None
        return printable(f"{stage}: {int(done)} of {int(total)}") + (f", {rough_duration(left)} left" if left else "")


class StageLog:
    """A line on standard error every few seconds. Quick commands print none."""

    def __init__(self) -> None:
        self.text, self.printed = StageText(), time.monotonic()

    def __call__(self, stage: str, done: float, total: float | None = None) -> None:
        line, now = self.text.line(stage, done, total), time.monotonic()
        if now - self.printed >= EVERY and sys.stderr is not None:
            self.printed = now
            with suppress(OSError, ValueError):  # nobody reads it any more
                print(line, file=sys.stderr, flush=True)  # noqa: T201


class NotebookLine:
    """One line in the output of a cell, which is replaced as the work proceeds and emptied at the end."""

    def __init__(self) -> None:
        from IPython.display import display

        self.text, self.shown = StageText(), 0.0
        show: Any = display
        self.handle = show({"text/plain": ""}, raw=True, display_id=True)

    def __call__(self, stage: str, done: float, total: float | None = None) -> None:
        begins = stage != self.text.stage
        line, now = self.text.line(stage, done, total), time.monotonic()
        if begins or now - self.shown >= REDRAW:
            self.shown = now
            self.handle.update({"text/plain": line}, raw=True)

    def close(self) -> None:
        self.handle.update({"text/plain": ""}, raw=True)


def rough_duration(seconds: float) -> str:
    """An estimate without false precision: 45 s, 3 min, 2 h 5 min."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min"

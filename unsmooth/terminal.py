"""What the command line shows beside results: a progress bar with the time left, on standard error."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_given: list[str] = []


def remember(arguments: Sequence[str]) -> None:
    """Keep what was typed, for results that say which command made them."""
    _given[:] = arguments


def command_line() -> str:
    return shlex.join(["unsmooth", *_given])


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar that is told (images done, images in all); it vanishes at its end, and is not drawn into a file."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(escape(title), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

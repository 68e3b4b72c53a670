"""Ctrl-C and SIGTERM ask a run to stop at the next step, when it can save."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.stop = False


@contextmanager
def graceful_shutdown() -> Iterator[StopFlag]:
    """The first signal is a flag, the second one does what it always did."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag  # only the main thread may handle signals
        return
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def asked(number: int, frame: FrameType | None) -> None:
        flag.stop = True
        signal.signal(number, old[signal.Signals(number)])

    for number in old:
        signal.signal(number, asked)
    try:
        yield flag
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)

"""Graceful shutdown: SIGINT, SIGTERM and SIGHUP set a flag that is checked after each step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


class StopFlag:
    """Whether a signal asked the run to stop."""

    def __init__(self) -> None:
        self.stop = False


@contextmanager
def graceful_shutdown() -> Iterator[StopFlag]:
    """Turn the first SIGINT, SIGTERM or SIGHUP (a closed terminal) into a flag; a second one has its usual effect."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag  # only the main thread can handle signals
        return
    previous = {number: signal.getsignal(number) for number in SIGNALS}

    def on_signal(number: int, frame: FrameType | None) -> None:
        flag.stop = True
        signal.signal(number, previous[signal.Signals(number)])

    for number in previous:
        signal.signal(number, on_signal)
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

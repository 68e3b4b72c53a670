"""Observers: who receives the attention and the residual sums of patched modules, and when they are paused."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor

from unsmooth.seam.intercept import AttentionCall


class ForwardObserver(Protocol):
    """Receives the effective attention and residual sums of patched modules, in the thread that it belongs to."""

    thread: int  # threading.get_ident() of the thread that it observes

    def saw_attention(self, call: AttentionCall) -> None: ...

    def saw_residual(self, x: Tensor, branch: Tensor, out: Tensor) -> None: ...


_observers_paused: ContextVar[bool] = ContextVar("unsmooth_observers_paused", default=False)


def observers_are_paused() -> bool:
    return _observers_paused.get()


@contextmanager
def observers_paused() -> Iterator[None]:
    """Within the context, observers of this thread ignore what runs: the arithmetic of a patch or of a callback."""
    token = _observers_paused.set(True)
    try:
        yield
    finally:
        _observers_paused.reset(token)


def active(observers: Sequence[ForwardObserver]) -> Sequence[ForwardObserver]:
    """The observers of this thread, unless they are paused."""
    if not observers or observers_are_paused():  # the first test suffices where nobody observes
        return ()
    return [observer for observer in observers if observer.thread == threading.get_ident()]

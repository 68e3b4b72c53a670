"""Observers of a run: the protocol, one that does nothing, and one that calls a progress callback."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from unsmooth.results.training import EpochMetrics

# Arguments: name of the run, steps done, total steps, and the metrics of an epoch that has just ended (else None).
OnProgress = Callable[[str, int, int, EpochMetrics | None], None]


class Observer(Protocol):
    """Protocol of an object that is notified of the progress of a run, by the primary process only."""

    def begin(self, epochs: int, steps: int, epoch: int) -> None:
        """Called once, with the number of epochs, the steps per epoch and the epochs done before."""

    def step(self, epoch: int, step: int) -> None:
        """Called after each step."""

    def epoch(self, line: EpochMetrics) -> None:
        """Called after each epoch with its metrics."""


class NullObserver:
    """Observer that does nothing."""

    def begin(self, epochs: int, steps: int, epoch: int) -> None: ...
    def step(self, epoch: int, step: int) -> None: ...
    def epoch(self, line: EpochMetrics) -> None: ...


class ProgressObserver:
    """Observer that calls `on_progress`.

    Args:
        name: Name of the run, passed to the callback.
        on_progress: Callback for steps and epochs.
        every: Minimum number of seconds between two calls for steps.
        on_stage: Callback for messages, such as that a run is resumed.
    """

    def __init__(
        self, name: str, on_progress: OnProgress, every: float = 0.0, on_stage: Callable[[str], None] | None = None
    ) -> None:
        self.name, self.on_progress, self.every, self.on_stage = name, on_progress, every, on_stage
        self.last = 0.0

    def begin(self, epochs: int, steps: int, epoch: int) -> None:
        self.steps, self.total = steps, epochs * steps
        if epoch and self.on_stage is not None:
            self.on_stage(f"resuming after epoch {epoch}")
        self.on_progress(self.name, epoch * steps, self.total, None)

    def step(self, epoch: int, step: int) -> None:
        now = time.monotonic()
        if now - self.last >= self.every:
            self.last = now
            self.on_progress(self.name, epoch * self.steps + step, self.total, None)

    def epoch(self, line: EpochMetrics) -> None:
        self.on_progress(self.name, line.epoch * self.steps, self.total, line)

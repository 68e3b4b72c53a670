"""Who follows a run: the protocol, one that does nothing, and one that reports progress to a callback."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

# Name of the run, steps done, steps in total, and the metrics of an epoch that ended (or None).
OnProgress = Callable[[str, int, int, Mapping[str, Any] | None], None]


class Observer(Protocol):
    """Follows a run; only the first process calls it."""

    def begin(self, epochs: int, steps: int, epoch: int) -> None: ...
    def step(self, epoch: int, step: int) -> None: ...
    def epoch(self, line: Mapping[str, Any]) -> None: ...


class NullObserver:
    def begin(self, epochs: int, steps: int, epoch: int) -> None: ...
    def step(self, epoch: int, step: int) -> None: ...
    def epoch(self, line: Mapping[str, Any]) -> None: ...


class ProgressObserver:
    """Reports steps and epochs of one run to `on_progress`, steps at most once every `every` seconds."""

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

    def epoch(self, line: Mapping[str, Any]) -> None:
        self.on_progress(self.name, line["epoch"] * self.steps, self.total, line)

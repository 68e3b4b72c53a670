"""Named points of a run at which a test kills it.

`kill_at(name)` is called in a child process before it trains: the child kills itself with SIGKILL at that point.
Nothing is restored, since the child never returns.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unsmooth.training import checkpoint
from unsmooth.training.run_dir import RunDir
from unsmooth.training.trainer import Trainer
from unsmooth.utils import files


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _after_steps(count: int) -> None:
    step, done = Trainer._step, []

    def counted(self: Trainer, batch: Any) -> None:
        step(self, batch)
        done.append(1)
        if len(done) == count:
            _die()

    Trainer._step = counted  # type: ignore[method-assign]


def _renaming(name: str, time: int, after: bool) -> None:
    """Around the rename that puts a file in its place, for the `time`-th time."""
    replace, seen = os.replace, []

    def watched(source: Any, target: Any) -> None:
        reached = str(target).endswith(name)
        seen.extend([1] if reached else [])
        if reached and len(seen) == time and not after:
            _die()
        replace(source, target)
        if reached and len(seen) == time and after:
            _die()

    files.os.replace = watched  # type: ignore[attr-defined]


def _half_a_checkpoint() -> None:
    save = checkpoint.save_file

    def cut(tensors: Any, path: Path, metadata: Any) -> None:
        save(tensors, path, metadata=metadata)
        os.truncate(path, os.path.getsize(path) // 2)
        _die()

    checkpoint.save_file = cut  # type: ignore[assignment]


def _half_a_metrics_line() -> None:
    add = RunDir.add_metrics

    def cut(self: RunDir, line: Any) -> None:
        add(self, line)
        os.truncate(self.metrics_file, os.path.getsize(self.metrics_file) - 20)
        _die()

    RunDir.add_metrics = cut  # type: ignore[method-assign]


KILL_POINTS: dict[str, Callable[[], None]] = {
    "after a step of the second epoch": lambda: _after_steps(6),
    "half of a checkpoint is written": _half_a_checkpoint,
    "before the first checkpoint is renamed": lambda: _renaming("state.safetensors", 1, after=False),
    "after the third checkpoint is renamed": lambda: _renaming("state.safetensors", 3, after=True),
    "half of a line of metrics is written": _half_a_metrics_line,
    "between the two files of the best model": lambda: _renaming("best/recipe.json", 1, after=False),
    "before the last model is in place": lambda: _renaming("last/model.safetensors", 1, after=False),
    "before the scores are in place": lambda: _renaming("scores.npz", 1, after=False),
    "before the result is in place": lambda: _renaming("result.json", 1, after=False),
}


def kill_at(name: str) -> None:
    KILL_POINTS[name]()

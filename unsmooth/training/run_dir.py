"""The folder of a run.

run.json            what was asked for: spec, data, resolved recipe, seed, versions; enough to repeat it
state.safetensors   the last checkpoint: everything that is needed to go on
metrics.jsonl       one line an epoch
tensorboard/        the same for TensorBoard
best/, last/        models as `unsmooth.save` writes them: the best epoch's so far, and the last one's at the end
scores.npz          which validation images the last model gets right, for paired comparisons
result.json         the end: a run that has it is done
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import differences
from unsmooth.utils.files import write

SETTINGS, STATE, METRICS, RESULT = "run.json", "state.safetensors", "metrics.jsonl", "result.json"
FORMAT = 1
# What must be the same for a run to go on.
BINDING = ("task", "options", "spec", "data", "val_data", "seed", "checkpoint", "pretrained", "images")


class RunFolder:
    """A run's files. Only one process at a time may have it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def state(self) -> Path:
        return self.path / STATE

    @property
    def done(self) -> bool:
        return (self.path / RESULT).exists()

    @property
    def begun(self) -> bool:
        """Whether there is anything to go on from, or to lose."""
        return self.done or self.state.exists() or bool(self.metrics())

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse, in words, to go on with another run's folder."""
        if self.path.exists() and not self.path.is_dir():
            raise UnsmoothError(f"{self.path} is a file; --out takes a folder")
        old = self.settings()
        if old is None:
            if self.path.exists() and any(not name.name.startswith(".") for name in self.path.iterdir()):
                raise UnsmoothError(f"{self.path} holds other files than a run's; give another --out")
            return
        if not self.begun:  # it stopped before its first checkpoint: there is nothing to lose
            return
        changed = [
            f"{k} was {old.get(k)!r} and is {settings.get(k)!r}" for k in BINDING if old.get(k) != settings.get(k)
        ]
        changed += differences(old.get("recipe", {}), settings["recipe"])
        if changed:
            raise UnsmoothError(
                f"{self.path} holds another run ({'; '.join(changed)}): repeat its command, or give another --out"
            )

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Take the folder and write down what was asked for."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise UnsmoothError(f"cannot write to {self.path}: {error.strerror}") from error
        try:
            # Not flock: processes that read images would inherit that and keep it a while after a kill.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.end()
            raise UnsmoothError(
                f"another process is training in {self.path}; wait for it, or give another --out"
            ) from error
        for left in self.path.rglob(".*.tmp"):  # what a kill in the middle of writing left
            left.unlink(missing_ok=True)
        if self.settings() is None or not self.begun:
            self.write_json(SETTINGS, {"format": FORMAT, "kind": "run", **settings})

    def end(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def settings(self) -> dict[str, Any] | None:
        return self.read_json(SETTINGS)

    def result(self) -> dict[str, Any] | None:
        return self.read_json(RESULT)

    def read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UnsmoothError(f"{path} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise UnsmoothError(f"{path} was not written by unsmooth")
        return found

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        write(self.path / name, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; half a line at its end, left by a kill, is no line."""
        path, lines = self.path / METRICS, []
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):
                    lines.append(json.loads(line))
        return lines

    def keep_metrics(self, epochs: int) -> None:
        """Forget the lines behind a checkpoint: those epochs come again."""
        kept = [line for line in self.metrics() if line["epoch"] <= epochs]
        write(self.path / METRICS, "".join(_line(line) for line in kept).encode())

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        try:
            with (self.path / METRICS).open("a", encoding="utf-8") as file:
                file.write(_line(line))
        except OSError as error:
            raise UnsmoothError(
                f"cannot write {self.path / METRICS}: {error.strerror}; the last checkpoint is as it was"
            ) from error

    def forget(self) -> None:
        """Take away everything of a run that has no checkpoint yet."""
        for name in ("best", "last", "tensorboard"):
            shutil.rmtree(self.path / name, ignore_errors=True)


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n"

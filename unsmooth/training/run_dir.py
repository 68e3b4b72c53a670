"""Directory of a training run.

run.json            settings: spec, data, resolved recipe, seed, versions; enough to repeat the run
state.safetensors   last checkpoint, from which the run is resumed
metrics.jsonl       one line per epoch
tensorboard/        the same metrics for TensorBoard
best/, last/        models as `unsmooth.save` writes them: of the best epoch so far, and of the last epoch
scores.npz          per-image correctness of the last model on the validation images, for paired comparisons
result.json         result; a run that has it is done
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import differences
from unsmooth.results.record import Result, plain_values, read_record
from unsmooth.results.training import EpochMetrics, RunSettings, TrainingResult
from unsmooth.tasks.classification.scores import SCORES
from unsmooth.utils.files import write

# Settings that must not change when a run is resumed.
FIXED = ("task", "options", "spec", "seed", "checkpoint", "pretrained", "images", "fingerprint")
LOCATIONS = ("data", "val_data")  # free to change if the fingerprint shows that the images are the same
# Settings that change rounding, and so the results of a run that is resumed with others.
ROUNDING = ("threads", "processes", "device")


class Locked(UnsmoothError):
    """Another process is training in the directory."""


class RunDir:
    """Files of a run. One process at a time holds its lock.

    Args:
        path: The directory. It is created by `acquire`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def settings_file(self) -> Path:
        return self.path / "run.json"

    @property
    def state(self) -> Path:
        return self.path / "state.safetensors"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def last(self) -> Path:
        return self.path / "last"

    @property
    def scores(self) -> Path:
        return self.path / SCORES

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def lock_file(self) -> Path:
        return self.path / ".lock"

    @property
    def done(self) -> bool:
        return self.result_file.exists()

    @property
    def started(self) -> bool:
        """Whether there is anything to resume, or to lose."""
        return self.done or self.state.exists() or bool(self.metrics())

    def check(self, settings: RunSettings) -> None:
        """Raise if the directory holds anything but a run with the same settings."""
        if self.path.exists() and not self.path.is_dir():
            raise UnsmoothError(f"{self.path} is a file. Use a directory as out (--out).")
        old = self.settings()
        if old is None:
            if self.path.exists() and any(not entry.name.startswith(".") for entry in self.path.iterdir()):
                raise UnsmoothError(f"{self.path} is not empty and holds no run. Use another out (--out).")
            return
        if not self.started:
            return
        fixed = FIXED if (old.fingerprint or "").strip() else (*FIXED, *LOCATIONS)
        if old.fingerprint is None:  # of an older version
            old = replace(old, fingerprint=settings.fingerprint)
        pairs = ((name, getattr(old, name), getattr(settings, name)) for name in fixed)
        changed = [f"{name} was {before!r} and is {now!r}" for name, before, now in pairs if before != now]
        changed += differences(old.recipe, settings.recipe)
        if changed:
            raise UnsmoothError(
                f"{self.path} holds another run ({'; '.join(changed)}). Repeat its command, or use another out (--out)."
            )

    def acquire(self, settings: RunSettings) -> None:
        """Create and lock the directory, and write the settings of a new run."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.lock_file, os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise UnsmoothError(f"cannot write to {self.path}: {error.strerror}") from error
        try:
            _lock(self._lock)
        except OSError as error:
            self.release()
            raise Locked(
                f"another process is training in {self.path}. Wait for it, or use another out (--out)."
            ) from error
        for temporary in self.path.rglob(".*.tmp"):  # left by a process that was killed while writing
            temporary.unlink(missing_ok=True)
        old = self.settings()
        if old is not None and self.started:
            for name in ROUNDING:
                before, now = getattr(old, name), getattr(settings, name)
                if before is not None and now is not None and before != now:
                    warnings.warn(
                        f"{self.path} was started with {name}={before} and is resumed with {now}: "
                        "results will differ slightly from those of an uninterrupted run.",
                        stacklevel=2,
                    )
        else:
            _write_json(self.settings_file, settings)

    def release(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def settings(self) -> RunSettings | None:
        """Content of run.json; None if there is none."""
        return RunSettings.from_json(self.settings_file) if self.settings_file.exists() else None

    def result(self) -> TrainingResult | None:
        """Content of result.json; None if the run is not done."""
        return TrainingResult.from_json(self.result_file) if self.result_file.exists() else None

    def metric(self, name: str) -> Any:
        """A metric of the last epoch; None if the run is not done or has no such metric."""
        result = self.result()
        return None if result is None else result.metrics.get(name)

    def write_result(self, result: TrainingResult) -> None:
        """Write result.json, which marks the run as done."""
        _write_json(self.result_file, result)

    def metrics(self) -> list[EpochMetrics]:
        """Lines of metrics.jsonl that can be read. A killed process leaves an incomplete last line."""
        lines = []
        if self.metrics_file.exists():
            for text in self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, RecursionError):
                    lines.append(read_record(EpochMetrics, json.loads(text)))
        return lines

    def truncate_metrics(self, epochs: int) -> None:
        """Remove the lines after a number of epochs, which are trained again."""
        lines = [line for line in self.metrics() if line.epoch <= epochs]
        write(self.metrics_file, "".join(_json_line(line) for line in lines))

    def add_metrics(self, line: EpochMetrics) -> None:
        """Append a line to metrics.jsonl."""
        try:
            with self.metrics_file.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(_json_line(line))
        except OSError as error:
            raise UnsmoothError(
                f"cannot write {self.metrics_file}: {error.strerror}. The last checkpoint is unchanged."
            ) from error

    def clear(self) -> None:
        """Remove the outputs of a run that has no checkpoint yet."""
        epochs = len(self.metrics())
        if epochs > 1:  # a run may be killed between its first epoch and its first checkpoint, but not later
            raise UnsmoothError(
                f"{self.state} is missing, and {epochs} epochs were trained. Restore it, or delete {self.path} and "
                "start again."
            )
        for folder in (self.best, self.last, self.tensorboard):
            shutil.rmtree(folder, ignore_errors=True)


def _lock(handle: int) -> None:
    """Lock an open file until it is closed; raise OSError if another process holds the lock."""
    try:
        import fcntl
    except ImportError:  # Windows has msvcrt instead; WebAssembly has neither and runs one process
        with suppress(ImportError):
            msvcrt: Any = import_module("msvcrt")
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        return
    # lockf, since data loader workers would inherit a flock and hold it for a while after a kill.
    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write_json(path: Path, result: Result) -> None:
    write(path, json.dumps(result.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _json_line(line: EpochMetrics) -> str:
    return json.dumps(plain_values(line), ensure_ascii=False, allow_nan=False) + "\n"

"""Where a monitor records its vitals and alarms: one small interface, and a class for each experiment tracker.

The packages are imported when a record is opened. W&B, MLflow and Trackio write to the run that is active then.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from unsmooth.errors import UnsmoothError, first_line, missing_package, unknown
from unsmooth.results.training import Alarm

PREFIX = "unsmooth"


@runtime_checkable
class Writer(Protocol):
    """Interface of a record. Any object with these three methods can be passed as `log`."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record the numbers of a measurement by name."""

    def alarm(self, alarm: Alarm) -> None:
        """Record an alarm."""

    def close(self) -> None:
        """Finish the record."""


Log = str | Path | Writer


class JsonLines:
    """A file with one JSON object per line: `{"step", "vitals"}` for a measurement, `{"alarm"}` for an alarm.

    Args:
        path: The file. New lines are appended.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self.file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115  # closed by `close`
        except OSError as error:
            raise UnsmoothError(f"cannot write {path}: {error.strerror or error}") from error

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self._line({"step": step, "vitals": dict(scalars)})

    def alarm(self, alarm: Alarm) -> None:
        self._line({"alarm": asdict(alarm)})

    def _line(self, content: dict[str, Any]) -> None:
        self.file.write(json.dumps(content, ensure_ascii=False) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class TensorBoard:
    """Event files for TensorBoard, written by tensorboardX or by torch.

    Args:
        folder: Folder of the event files.
        purge_step: First step that is replaced in existing event files.
    """

    def __init__(self, folder: str | Path = "runs/unsmooth", purge_step: int | None = None) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise missing_package("a TensorBoard record", "tensorboardX", "tensorboard") from None
        try:
            self.writer: Any = SummaryWriter(str(folder), purge_step=purge_step)
        except OSError as error:
            raise UnsmoothError(f"cannot write {folder}: {error.strerror or error}") from error

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        thread = getattr(self.writer.file_writer.event_writer, "_worker", None)
        if thread is not None and not thread.is_alive():  # or adding would wait for it forever
            raise OSError("its writer stopped")
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def alarm(self, alarm: Alarm) -> None:
        self.writer.add_text("alarm", str(alarm), alarm.step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandB:
    """The active run of Weights & Biases. Vitals have a step axis of their own, so they fit any other logging."""

    def __init__(self) -> None:
        self.run = _import("wandb", "a W&B record").run
        if self.run is None:
            raise UnsmoothError("there is no active W&B run. Call wandb.init(...) before the monitor is constructed.")
        self.run.define_metric(f"{PREFIX}/step")
        self.run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self.run.log({f"{PREFIX}/step": step, **_prefixed(scalars)})

    def alarm(self, alarm: Alarm) -> None:
        self.run.alert(title=f"{PREFIX}: {alarm.kind}", text=str(alarm), level="WARN")

    def close(self) -> None: ...  # the run belongs to the caller


class MLflow:
    """The active run of MLflow; without one, MLflow starts it. An alarm becomes a tag of the run."""

    def __init__(self) -> None:
        self.mlflow = _import("mlflow", "an MLflow record")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self.mlflow.log_metrics(_prefixed(scalars), step=step)

    def alarm(self, alarm: Alarm) -> None:
        self.mlflow.set_tag(f"{PREFIX}.alarm.{alarm.kind}", str(alarm))

    def close(self) -> None: ...


class Trackio:
    """The active run of Trackio."""

    def __init__(self) -> None:
        self.trackio = _import("trackio", "a Trackio record")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self.trackio.log(_prefixed(scalars), step=step)

    def alarm(self, alarm: Alarm) -> None:
        self.trackio.alert(title=f"{PREFIX}: {alarm.kind}", text=str(alarm))

    def close(self) -> None: ...


def _import(name: str, what: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise UnsmoothError(f"{what} needs {name}. pip install {name}") from None


def _prefixed(scalars: Mapping[str, float]) -> dict[str, float]:
    return {f"{PREFIX}/{name}": value for name, value in scalars.items()}


WRITERS: dict[str, Callable[..., Writer]] = {
    "tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow, "trackio": Trackio,
}  # fmt: skip


class Records:
    """Several records as one. A record that fails, on a full disk for instance, is given up with a warning.

    Args:
        log: The records, as in `unsmooth.Monitor`.
    """

    def __init__(self, log: Log | list[Log] | None = None) -> None:
        logs = [] if log is None else log if isinstance(log, list) else [log]
        self.writers = [_open(one) for one in logs]

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self._each(lambda writer: writer.write(step, scalars))

    def alarm(self, alarm: Alarm) -> None:
        self._each(lambda writer: writer.alarm(alarm))

    def close(self) -> None:
        self._each(lambda writer: writer.close())
        self.writers = []

    def _each(self, call: Callable[[Writer], None]) -> None:
        for writer in list(self.writers):
            try:
                call(writer)
            except Exception as error:  # of any tracker: a record does not end a run
                self.writers.remove(writer)
                reason = getattr(error, "strerror", None) or first_line(error)
                warnings.warn(f"{type(writer).__name__} stopped: {reason}. Training continues.", stacklevel=4)


def _open(log: Log) -> Writer:
    if not isinstance(log, str | Path):
        if not isinstance(log, Writer):
            raise UnsmoothError(f"a record must have the methods write, alarm and close (got {type(log).__name__}).")
        return log
    if Path(log).suffix in (".jsonl", ".json"):
        return JsonLines(log)
    name, _, folder = str(log).partition(":")
    if name not in WRITERS:
        raise unknown("record", str(log), (*WRITERS, "tensorboard:FOLDER", "FILE.jsonl"))
    if folder and name != "tensorboard":
        raise UnsmoothError(f"{name} takes no folder (got {folder!r}). Use {name!r}.")
    return WRITERS[name](*([folder] if folder else []))

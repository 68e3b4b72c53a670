"""TensorBoard log of a run; optional, since metrics.jsonl has the same metrics."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class TensorBoardLog:
    """Context manager that writes the metrics of each epoch as scalars.

    Without the package tensorboardX, a warning is issued and nothing is written.

    Args:
        path: Directory of the event files.
        epoch: Number of epochs done. Later epochs in existing event files are replaced.
        resumed: Whether the run is resumed from a checkpoint.
    """

    def __init__(self, path: Path, epoch: int, resumed: bool) -> None:
        self.writer: Any = None
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            warnings.warn(
                "no TensorBoard log is written: tensorboardX is not installed. pip install 'unsmooth[tensorboard]'",
                stacklevel=2,
            )
            return
        try:
            self.writer = SummaryWriter(str(path), purge_step=epoch + 1 if resumed else None)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Go on without the log: metrics.jsonl has the same metrics."""
        self.writer = None
        warnings.warn(f"the TensorBoard log is not written any more: {error.strerror or error}", stacklevel=3)

    def add(self, line: Mapping[str, Any]) -> None:
        """Write the metrics of an epoch, unless the writer stopped (because the disk is full, for instance)."""
        if self.writer is None:
            return
        thread = getattr(self.writer.file_writer.event_writer, "_worker", None)
        if thread is not None and not thread.is_alive():
            return
        try:
            self._write(line)
        except OSError as error:
            self._give_up(error)

    def _write(self, line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            if name != "epoch" and isinstance(value, int | float):
                self.writer.add_scalar(name, value, line["epoch"])
        for vital, values in line.get("vitals", {}).items():
            for block, value in enumerate(values):
                if value is not None:
                    self.writer.add_scalar(f"{vital}/block {block}", value, line["epoch"])
        self.writer.flush()

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.writer is not None:
            try:
                self.writer.close()
            except OSError as problem:
                self._give_up(problem)

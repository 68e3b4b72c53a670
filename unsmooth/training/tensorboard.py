"""The metrics of a run for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorboardX import SummaryWriter


class Board:
    """Writes a line of metrics as scalars; the steps behind `epoch` come again and replace what was there."""

    def __init__(self, path: Path, epoch: int, resumed: bool) -> None:
        self.writer = SummaryWriter(str(path), purge_step=epoch + 1 if resumed else None)

    def add(self, line: Mapping[str, Any]) -> None:
        """Write a line. metrics.jsonl has it too, so a writer that died of a full disk is no reason to stop."""
        thread = getattr(self.writer.file_writer.event_writer, "_worker", None)
        if thread is not None and not thread.is_alive():
            return
        for name, value in line.items():
            if name != "epoch" and isinstance(value, int | float):
                self.writer.add_scalar(name, value, line["epoch"])
        for vital, values in line.get("vitals", {}).items():
            for block, value in enumerate(values):
                if value is not None:
                    self.writer.add_scalar(f"{vital}/block {block}", value, line["epoch"])
        self.writer.flush()

    def __enter__(self) -> Board:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.writer.close()

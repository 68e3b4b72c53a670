"""The tasks that a model can be trained for. This file does not import torch, so that `--help` stays fast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskKind:
    """What commands know of a task before it is opened. Its code is in `unsmooth/tasks/NAME/task.py`."""

    takes_images: bool  # trained on any images, with val_data and data_dir


CLASSIFICATION = "classification"
TASKS = {
    CLASSIFICATION: TaskKind(takes_images=True),
    "segmentation": TaskKind(takes_images=False),
    "vqa": TaskKind(takes_images=False),
    "mae": TaskKind(takes_images=True),
}

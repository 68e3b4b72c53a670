"""What a run was asked for, as it is written down, and whether the data are enough for it."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import timm
import torch

from unsmooth._version import __version__
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import Recipe
from unsmooth.tasks.base import Task
from unsmooth.training.distributed import Processes


def settings_of(
    spec: str,
    task: Task,
    val_data: str | Path | None,
    recipe: Recipe,
    seed: int,
    checkpoint: str | Path | None,
    pretrained: bool,
    command: str,
) -> dict[str, Any]:
    return {
        "task": task.name, "options": dict(task.options), "spec": spec,
        "data": task.data, "val_data": None if val_data is None else str(val_data),
        "images": task.counts(),
        "seed": seed, "checkpoint": None if checkpoint is None else str(checkpoint), "pretrained": pretrained,
        "recipe": recipe.to_json(), "command": command, "threads": torch.get_num_threads(),
        "versions": {"unsmooth": __version__, "torch": torch.__version__, "timm": timm.__version__,
                     "python": platform.python_version()},
    }  # fmt: skip


def check_budget(task: Task, recipe: Recipe) -> None:
    train = task.counts()["train"]
    if train < recipe.batch_size:
        raise UnsmoothError(
            f"{task.data} has {train} training images, less than one batch of {recipe.batch_size}; "
            f"try --batch-size {max(1, train // 8)}"
        )


def check_shares(task: Task, recipe: Recipe, processes: Processes) -> None:
    size, world, val = recipe.batch_size, processes.world, task.counts()["val"]
    if val < world:
        raise UnsmoothError(f"{task.data} has {val} validation images, and {world} processes share them")
    if size % world or (recipe.mixes and (size // world) % 2):
        even = "an even number of images each" if recipe.mixes else "equal shares"
        raise UnsmoothError(f"batch_size {size} does not give {world} processes {even}; choose another batch_size")

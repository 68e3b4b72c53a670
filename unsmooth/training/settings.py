"""What a run was asked for, as it is written down, and whether the data are enough for it."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import timm
import torch

import unsmooth
from unsmooth.errors import UnsmoothError
from unsmooth.splits import Splits
from unsmooth.training.processes import Processes
from unsmooth.training.recipe import Recipe


def settings_of(
    spec: str,
    splits: Splits,
    val_data: str | Path | None,
    recipe: Recipe,
    seed: int,
    checkpoint: str | Path | None,
    pretrained: bool,
    command: str,
    processes: Processes | None = None,
) -> dict[str, Any]:
    return {
        "spec": spec, "data": splits.name, "val_data": None if val_data is None else str(val_data),
        "images": {"train": splits.train.count, "val": splits.val.count, "classes": splits.classes},
        "seed": seed, "checkpoint": None if checkpoint is None else str(checkpoint), "pretrained": pretrained,
        "recipe": recipe.to_json(), "command": command, "threads": torch.get_num_threads(),
        "processes": processes.world if processes else 1, "device": processes.device.type if processes else "cpu",
        "versions": {"unsmooth": unsmooth.__version__, "torch": torch.__version__, "timm": timm.__version__,
                     "python": platform.python_version()},
    }  # fmt: skip


def check_budget(splits: Splits, recipe: Recipe) -> None:
    if splits.train.count < recipe.batch_size:
        raise UnsmoothError(
            f"{splits.name} has {splits.train.count} training images, less than one batch of {recipe.batch_size}; "
            f"try --batch-size {max(1, splits.train.count // 8)}"
        )


def check_shares(recipe: Recipe, processes: Processes, splits: Splits) -> None:
    size, world = recipe.batch_size, processes.world
    if splits.val.count < world:
        raise UnsmoothError(f"{splits.val.name} has {splits.val.count} images, and {world} processes share them")
    if size % world or (recipe.mixes and (size // world) % 2):
        even = "an even number of images each" if recipe.mixes else "equal shares"
        raise UnsmoothError(f"batch_size {size} does not give {world} processes {even}; choose another batch_size")

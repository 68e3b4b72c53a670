"""Settings of a run as run.json records them, and checks of the batch size against the data and the processes."""

from __future__ import annotations

import platform

import torch

from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import Recipe
from unsmooth.results.provenance import versions
from unsmooth.results.training import RunSettings
from unsmooth.tasks.base import Task
from unsmooth.utils.processes import Processes


def run_settings(task: Task, command: str = "") -> RunSettings:
    """Settings of a run, without the number of processes and the device."""
    request = task.request
    return RunSettings(
        task=task.name, options={name: str(value) for name, value in request.options.items()},
        spec=str(request.spec), data=task.data, val_data=request.val_data,
        images=task.counts(), fingerprint=task.fingerprint(),
        seed=request.seed, checkpoint=None if request.checkpoint is None else str(request.checkpoint),
        pretrained=request.pretrained, recipe=request.recipe.to_json(), command_line=command,
        threads=torch.get_num_threads(),
        versions={**versions(), "python": platform.python_version()},
    )  # fmt: skip


def check_batch_size(task: Task, recipe: Recipe) -> None:
    """Raise if the training images do not fill one batch."""
    images = task.counts()["train"]
    if images < recipe.batch_size:
        raise UnsmoothError(
            f"{task.data} has {images} training images, fewer than one batch of {recipe.batch_size}. "
            f"Use batch_size={max(1, images // 8)} (--batch-size)."
        )


def check_process_shares(task: Task, recipe: Recipe, processes: Processes) -> None:
    """Raise if batches or validation images cannot be divided among the processes."""
    batch_size, world, val = recipe.batch_size, processes.world, task.counts()["val"]
    if val < world:
        raise UnsmoothError(f"{task.data} has {val} validation images, fewer than the {world} processes")
    if batch_size % world or (recipe.mixes and (batch_size // world) % 2):
        share = "an even number of images per process" if recipe.mixes else "the same number of images per process"
        raise UnsmoothError(
            f"batch_size={batch_size} with {world} processes does not give {share}. Use another batch_size."
        )

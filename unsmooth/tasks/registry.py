"""The tasks that a run can have, by name; each is opened only when it is asked for, with what it needs installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from unsmooth.data.splits import open_splits, some_of
from unsmooth.errors import UnsmoothError, unknown
from unsmooth.recipes.recipe import Recipe
from unsmooth.tasks.base import Task
from unsmooth.tasks.classification.task import Classification

CLASSIFICATION = Classification.name
# Each has a function `open_task`.
OTHERS = {name: f"unsmooth.tasks.{name}.task" for name in ("segmentation", "vqa", "mae")}
OF_IMAGES = ("mae",)  # whose data is any images, as for classification


def open_task(
    name: str,
    spec: str,
    data: str | Path,
    recipe: Recipe,
    seed: int,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    val_data: str | Path | None = None,
    data_dir: str | Path | None = None,
    strict: bool = False,
    options: Mapping[str, str] | None = None,
) -> Task:
    """A task by its name; `options` are words of its own."""
    if name == CLASSIFICATION:
        if options:
            raise UnsmoothError(f"{CLASSIFICATION} has no options of its own, and {next(iter(options))} was given")
        splits = some_of(open_splits(data, val_data, data_dir), recipe.train_images, recipe.val_images)
        return Classification(spec, splits, recipe, seed, checkpoint, pretrained, strict)
    if name not in OTHERS:
        raise unknown("task", name, [CLASSIFICATION, *OTHERS])
    places: dict[str, Any] = {"val_data": val_data, "data_dir": data_dir}
    if name not in OF_IMAGES:
        named = next((option for option, value in places.items() if value is not None), None)
        if named is not None:
            raise UnsmoothError(f"{named} is for plain images; {name} finds all that it needs in --data")
        places = {}
    opened: Task = import_module(OTHERS[name]).open_task(
        spec, data, recipe, seed, checkpoint=checkpoint, pretrained=pretrained, strict=strict, options=options or {},
        **places,
    )  # fmt: skip
    opened.options = dict(options or {})
    return opened

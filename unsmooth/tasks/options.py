"""A task's own words from the command line (`--option mask_ratio=0.6`), read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.recipes.recipe import Recipe
from unsmooth.remedies.base import Option

_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}


def read_options(task: str, given: Mapping[str, Any], known: Mapping[str, Option]) -> dict[str, Any]:
    """Every known option: as given, read as the type of its default, or that default."""
    for name in given:
        if name not in known:
            raise unknown(f"option of {task}", name, known)
    return {
        name: _read(task, name, option, str(given[name])) if name in given else option.default
        for name, option in known.items()
    }


def _read(task: str, name: str, option: Option, text: str) -> Any:
    kind = type(option.default)
    if kind is str:
        return option.check(task, name, text) if option.choices else text
    try:
        value: Any = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise UnsmoothError(f"{task}({name}={text}): {name} must be {_KINDS[kind]}") from None
    return option.check(task, name, value)


# Recipe fields that only classification has a meaning for, and what switches them off.
FOREIGN = {"mixup": 0.0, "cutmix": 0.0, "distillation": "none", "auto_augment": "", "erasing": 0.0}


def refuse_foreign(recipe: Recipe, task: str) -> None:
    """Refuse what the task would leave out silently."""
    for name, off in FOREIGN.items():
        if getattr(recipe, name) != off:
            raise UnsmoothError(
                f"recipe: {name} is for classification, and cannot be used in {task}: set it to {off!r}, or take "
                f"--recipe {task}"
            )

"""The page of recipes, field by field."""

from __future__ import annotations

import dataclasses
from typing import Any

from tools.markdown import page, table
from unsmooth.recipes.recipe import Recipe, list_recipes, load_recipe
from unsmooth.utils.options import describe

RECIPES = """
A recipe holds every choice that determines the result of a training run. The bundled recipes are files in
`unsmooth/recipes/`. `unsmooth train … --recipe deit --epochs 100` overrides a field, and `--recipe MINE.toml` reads
your own file. Fields that a file omits have their default.
"""


def pages() -> dict[str, str]:
    return {"recipes.md": _recipes()}


def _recipes() -> str:
    recipes = {name: load_recipe(name) for name in list_recipes()}
    helps = {field.name: field.metadata.get("help", "") for field in dataclasses.fields(Recipe)}
    rows = [
        (f"`{field.name}`", field.help or helps[field.name], _value(field.default),
         *(_value(getattr(recipe, field.name)) for recipe in recipes.values()))
        for field in describe(Recipe)
    ]  # fmt: skip
    headings = ("field", "meaning", "default", *(f"`{name}`" for name in recipes))
    return page(["# Recipes", "", RECIPES.strip(), "", *table(headings, rows)])


def _value(value: Any) -> str:
    text = ", ".join(f"{v:.3g}" for v in value) if isinstance(value, list | tuple) else str(value).lower()
    return text.replace(",", ", ").replace(",  ", ", ") or "–"

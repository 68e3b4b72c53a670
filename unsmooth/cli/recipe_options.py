"""Recipe fields as options: `--batch-size 32`, on every command that takes a recipe."""

from __future__ import annotations

from typing import Any

from typer import Context
from typer.core import TyperCommand

from unsmooth.errors import UnsmoothError, unknown

_KEY = "unsmooth.recipe_fields"


class RecipeCommand(TyperCommand):
    """A command that accepts every field of a recipe besides its own options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {option for parameter in self.params for option in (*parameter.opts, *parameter.secondary_opts)}
        fields, rest = _split(args, {*own, "--help"})
        ctx.meta[_KEY] = fields
        return list(super().parse_args(ctx, rest))


def recipe_fields(context: Context) -> dict[str, Any]:
    """The recipe fields of the command line."""
    texts: dict[str, str] = context.meta.get(_KEY, {})
    if not texts:
        return {}
    from unsmooth.recipes.recipe import Recipe
    from unsmooth.utils.options import read_text_values

    return read_text_values(Recipe, texts, "recipe")


def _split(args: list[str], own: set[str]) -> tuple[dict[str, str], list[str]]:
    """Recipe fields with their values, and all other words."""
    fields: dict[str, str] = {}
    rest: list[str] = []
    words = list(args)
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if not option.startswith("--") or option in own:
            rest.append(word)
            continue
        switches = _switches()  # imported only where a recipe field is used
        name = option[2:].replace("-", "_")
        if name not in switches:
            known = [*own, *(f"--{field.replace('_', '-')}" for field in switches)]
            raise unknown("option or recipe field", option, known)
        if not equals:
            if switches[name] and (not words or words[0].startswith("--")):
                value = "true"
            elif not words:
                raise UnsmoothError(f"{option} needs a value")
            else:
                value = words.pop(0)
        fields[name] = value
    return fields, rest


def _switches() -> dict[str, bool]:
    """Names of all recipe fields, and whether a field is true or false."""
    from unsmooth.recipes.recipe import Recipe
    from unsmooth.utils.options import describe

    return {field.name: field.kind is bool for field in describe(Recipe)}

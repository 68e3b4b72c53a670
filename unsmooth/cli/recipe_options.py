"""Recipe fields as options: `--batch-size 32` beside a command's own, on every command that takes a recipe."""

from __future__ import annotations

from typing import Any

from typer import Context
from typer.core import TyperCommand

from unsmooth.errors import unknown
from unsmooth.recipes.recipe import Recipe, read_overrides
from unsmooth.utils.options import describe

FIELDS = "unsmooth.recipe_fields"


class TakesRecipe(TyperCommand):
    """A command that keeps recipe fields for itself before its own options are read."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {field.name: field.kind is bool for field in describe(Recipe)}
        own = {option for parameter in self.params for option in (*parameter.opts, *parameter.secondary_opts)}
        own.add("--help")
        ours: list[str] = []
        rest: list[str] = []
        words = list(args)
        while words:
            word = words.pop(0)
            option, given, _ = word.partition("=")
            name = option[2:].replace("-", "_")
            if not option.startswith("--") or option in own:
                rest.append(word)
                continue
            if name not in known:
                raise unknown("option or recipe field", option, [*own, *(f"--{n.replace('_', '-')}" for n in known)])
            ours.append(word)
            if not given and words and not (known[name] and words[0].startswith("--")):
                ours.append(words.pop(0))
        ctx.meta[FIELDS] = read_overrides(ours)
        return list(super().parse_args(ctx, rest))


def recipe_fields(context: Context) -> dict[str, Any]:
    """The fields that were given on the command line."""
    return dict(context.meta.get(FIELDS, {}))

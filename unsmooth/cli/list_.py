"""unsmooth list: the remedies, the vitals and the fields of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from typer import Argument

from unsmooth.cli.terminal import show
from unsmooth.errors import unknown

INDENT = (0, 0, 0, 4)


def list_(
    what: Annotated[
        str, Argument(metavar="remedies|vitals|recipes", show_default=False, help="what to list (default: remedies)")
    ] = "remedies",
) -> None:
    """List the remedies, the vitals or the fields of a recipe.

    Remedies are listed with their options and evidence, vitals with their formulas, and recipe fields with their value
    in each recipe.
    """
    listings = {"remedies": _remedies, "vitals": _vitals, "recipes": _recipes}
    if what not in listings:
        raise unknown("listing", what, listings)
    show(listings[what]())


def _remedies() -> Iterator[RenderableType]:
    from unsmooth import remedies

    for key in remedies.list_remedies():
        remedy = remedies.get(key)
        yield f"[bold]{key}[/bold]  {escape(remedy.title)}, on {remedy.acts_on}"
        yield _facts(remedies.facts(remedy))
    yield "\nAdd remedies to a host with +: unsmooth check 'deit_tiny_patch16_224+attn_scale(blocks=6:)'"


def _vitals() -> Iterator[RenderableType]:
    from unsmooth.diagnosis import registry

    for key in registry.list_vitals():
        vital = registry.get(key)
        request = "" if vital.default else ", on request"
        yield f"[bold]{key}[/bold]  {escape(vital.title)} ({vital.family}{request})"
        facts = {"formula": vital.formula, "reading": vital.reading, **dict(vital.parts)}
        if vital.accepts:
            facts["accepts"] = f"{', '.join(vital.accepts)} attention"
        if vital.sample is not None:
            facts["sample"] = f"at most {vital.sample} images"
        if vital.default_sample is not None:
            facts["default"] = f"at most {vital.default_sample} images unless it is requested by name"
        yield _facts(facts)


def _recipes() -> Iterator[RenderableType]:
    from unsmooth.recipes.recipe import Recipe, list_recipes, load_recipe
    from unsmooth.utils.options import describe

    recipes = {name: load_recipe(name).to_json() for name in list_recipes()}
    for field in describe(Recipe):
        yield f"[bold]{field.name}[/bold]  {escape(field.help)}"
        values = {name: _value(recipe[field.name]) for name, recipe in recipes.items()}
        if len(set(values.values())) == 1:
            values = {"every recipe:": values.popitem()[1]}
        yield Padding(f"[dim]{'  '.join(f'{name} {value}' for name, value in values.items())}[/dim]", INDENT)
    yield "\nOn the command line: unsmooth train … --recipe small --batch-size 32 --lr 2e-3"


def _facts(facts: Mapping[str, str]) -> RenderableType:
    """Labels with their texts, in two columns."""
    table = Table.grid(padding=(0, 1))
    table.add_column(min_width=11, style="dim")
    table.add_column(overflow="fold")
    for label, text in facts.items():
        table.add_row(escape(label), escape(text))
    return Padding(table, INDENT, expand=False)


def _value(value: Any) -> str:
    text = ", ".join(f"{number:g}" for number in value) if isinstance(value, list) else f"{value}".lower()
    return escape(text) or "–"

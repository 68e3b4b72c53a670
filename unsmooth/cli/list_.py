"""unsmooth list: the remedies, the vitals and the fields of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding
from typer import Argument

from unsmooth.cli.terminal import show
from unsmooth.errors import unknown


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
        yield from _facts(remedies.facts(remedy))
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
        yield from _facts(facts)


def _recipes() -> Iterator[RenderableType]:
    from dataclasses import fields

    from unsmooth.recipes.recipe import Recipe, list_recipes, load_recipe

    recipes = {name: load_recipe(name).to_json() for name in list_recipes()}
    for field in fields(Recipe):
        yield f"[bold]{field.name}[/bold]  {escape(field.metadata['help'])}"
        values = "  ".join(f"{name} {_value(recipe[field.name]) or '–'}" for name, recipe in recipes.items())
        yield Padding(f"[dim]{values}[/dim]", (0, 0, 0, 4))
    yield "\nOn the command line: unsmooth train … --recipe small --batch-size 32 --lr 2e-3"


def _facts(facts: Mapping[str, str]) -> Iterator[RenderableType]:
    for label, text in facts.items():
        yield Padding(f"[dim]{escape(label):<11}[/dim] {escape(text)}", (0, 0, 0, 4))


def _value(value: Any) -> str:
    return ", ".join(f"{number:g}" for number in value) if isinstance(value, list) else escape(f"{value}".lower())

"""Pages about training: the recorded trials, from their JSON, and the recipes, field by field."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from typing import Any

from tools.markdown import RESULTS, page, table, whole
from unsmooth.recipes.recipe import Recipe, list_recipes, load_recipe
from unsmooth.report.trial_design import design
from unsmooth.results.trial import Trial
from unsmooth.utils.options import describe

COLUMNS = (
    "arm", "top-1, %", "points vs plain", "published", "parameters", "MFLOPs", "inference", "training", "diagnosis",
    "similarity", "rank",
)  # fmt: skip
TRIALS = """
Each table is one command, printed below it, on CIFAR-10 with the budget of `results/cifar10.toml`: 4,000 of the 50,000
training images, 9 epochs (558 steps of 64), 4,000 of the 10,000 test images, three seeds, fp32 on two cores of an x86
CPU. That is far from convergence.

- *top-1*: last epoch, mean ± standard deviation over seeds.
- *points vs plain*: difference paired by seed and image, with a 95 % bootstrap interval over both. Intervals are not
  corrected for the number of arms.
- *published*: difference in the paper, for other hosts, data and budgets.
- *inference*, *training*: images per second as a ratio to plain, measured interleaved. The hosts are so small that
  Python overhead matters.
- *diagnosis*, *similarity* (mean |cosine| of tokens), *rank* (effective rank): of the first seed's final model on 64
  test images, first block → last block.
"""
RECIPES = """
A recipe holds every choice that determines the result of a training run. The bundled recipes are files in
`unsmooth/recipes/`. `unsmooth train … --recipe deit --epochs 100` overrides a field, and `--recipe MINE.toml` reads
your own file. Fields that a file omits have their default.
"""


def pages() -> dict[str, str]:
    return {"trials.md": _trials(), "recipes.md": _recipes()}


def _trials() -> str:
    experiments = tomllib.loads((RESULTS / "experiments.toml").read_text(encoding="utf-8"))
    lines = ["# Recorded trials", "", TRIALS.strip(), ""]
    for name, experiment in experiments.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        trial = json.loads(path.read_text(encoding="utf-8"))
        published = experiment.get("published", {})
        lines += [f"## {experiment['title']}", "", f"`{experiment['host']}`", "", trial["verdict"]["text"], ""]
        lines += [line for text in design(Trial.from_dict(trial)) for line in (text, "")]
        lines += table(COLUMNS, (_row(arm, published) for arm in trial["arms"]))
        lines += [experiment.get("reading", "").strip(), "", f"`{trial['made']['command']}`", ""]
    return page(lines)


def _row(arm: dict[str, Any], published: dict[str, str]) -> list[str]:
    top1, difference, diagnosis = arm["top1"], arm["difference"], arm["diagnosis"]
    accuracy = "failed" if top1["mean"] is None else f"{100 * top1['mean']:.1f}"
    accuracy += "" if top1["sd"] is None else f" ± {100 * top1['sd']:.1f}"
    gain = "" if difference is None else difference["text"].replace(" points", "")
    if "(" in gain:  # a line break may only precede the interval
        text, _, interval = gain.partition("(")
        gain = f"{text}({whole(interval)}"

    def ends(key: str, digits: int) -> str:
        values = [v for v in (diagnosis or {"vitals": {}})["vitals"].get(key, []) if v is not None]
        return whole(f"{values[0]:.{digits}f} → {values[-1]:.{digits}f}") if values else ""

    return [
        f"`{arm['name']}`", whole(accuracy), gain, published.get(arm["name"], ""),
        f"{arm['parameters']:,}", f"{arm['flops'] / 1e6:.1f}",
        *(f"{arm[kind]['ratio']['median']:.2f}" for kind in ("inference", "training")),
        "" if diagnosis is None else diagnosis["verdict"]["state"], ends("token_cosine", 2), ends("effective_rank", 1),
    ]  # fmt: skip


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

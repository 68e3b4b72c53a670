"""Pages about training: the recorded trials, from their JSON, and the recipes, field by field."""

from __future__ import annotations

import inspect
import json
import tomllib
from pathlib import Path
from typing import Any

from unsmooth.recipes.recipe import Recipe, list_recipes, load_recipe
from unsmooth.utils.options import describe

NOTE = "<!-- written by `make docs`; edit what it is made of instead -->\n"
RESULTS = Path(__file__).parent.parent / "results"
COLUMNS = (
    "arm", "top-1 %", "points to plain", "published", "params", "MFLOPs", "infer", "train", "diagnosis", "similarity",
    "rank",
)  # fmt: skip
TRIALS = """
    Each table is one command (below it) on CIFAR-10 with the budget of results/cifar10.toml: 4,000 of the 50,000
    training images, 9 epochs (558 steps of 64), tested on 4,000 of the 10,000 test images, three seeds, in fp32 on two
    cores of an x86 CPU. That is far from convergence. top-1 is of the last epoch, mean ± standard deviation over
    seeds. Points are paired by seed and image, with 95 % bootstrap intervals over both, not corrected for the number of
    arms. Published differences are of other hosts, data and budgets. infer and train: images per second as a ratio to
    plain, measured interleaved on hosts so small that Python's overhead weighs. diagnosis, similarity (mean |cosine| of
    tokens, first → last block) and rank (effective, first → last) are of the first seed's final model, 64 test images.
"""


def trials_page() -> str:
    """Every recorded trial: its table from its JSON, what was published, and the reading written beside its specs."""
    experiments = tomllib.loads((RESULTS / "experiments.toml").read_text(encoding="utf-8"))
    lines = ["# Recorded trials", "", inspect.cleandoc(TRIALS), ""]
    for name, wanted in experiments.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        trial = json.loads(path.read_text(encoding="utf-8"))
        published = wanted.get("published", {})
        lines += [f"## {wanted['title']}", "", f"`{wanted['host']}`", "", trial["verdict"]["text"], "",
                  f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]  # fmt: skip
        lines += [trial_row(arm, published) for arm in trial["arms"]]
        lines += ["", wanted.get("reading", "").strip(), "", f"`{trial['made']['command']}`", ""]
    return NOTE + "\n".join(lines)


def trial_row(arm: dict[str, Any], published: dict[str, str]) -> str:
    top1, d, found = arm["top1"], arm["difference"], arm["diagnosis"]
    accuracy = "failed" if top1["mean"] is None else f"{100 * top1['mean']:.1f}"
    accuracy += "" if top1["sd"] is None else f" ± {100 * top1['sd']:.1f}"

    def ends(key: str, digits: int) -> str:
        values = [v for v in (found or {"vitals": {}})["vitals"].get(key, []) if v is not None]
        return f"{values[0]:.{digits}f} → {values[-1]:.{digits}f}" if values else ""

    cells = [
        f"`{arm['name']}`", accuracy, "" if d is None else d["text"].replace(" points", ""),
        published.get(arm["name"], ""),
        f"{arm['parameters']:,}", f"{arm['flops'] / 1e6:.1f}",
        *(f"{arm[kind]['ratio']['median']:.2f}" for kind in ("inference", "training")),
        "" if found is None else found["verdict"]["state"], ends("token_cosine", 2), ends("effective_rank", 1),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def recipes_page() -> str:
    names = list_recipes()
    found = {name: load_recipe(name).to_json() for name in names}

    def shown(value: Any) -> str:
        text = ", ".join(f"{v:.3g}" for v in value) if isinstance(value, list) else str(value).lower()
        return text or "–"

    lines = [
        "# Recipes", "",
        "Files in `unsmooth/recipes/`. `unsmooth train … --recipe deit --epochs 100` overrides a field; `--recipe "
        "MINE.toml` reads your own. Fields that a file leaves out have the default.", "",
        f"| field | {' | '.join(f'`{name}`' for name in names)} | default | meaning |", "|---" * (len(names) + 3) + "|",
        *(
            f"| `{field.name}` | {' | '.join(shown(found[name][field.name]) for name in names)} | "
            f"{shown(list(field.default) if isinstance(field.default, tuple) else field.default)} | "
            f"{field.help} |"
            for field in describe(Recipe)
        ), "",
    ]  # fmt: skip
    return NOTE + "\n".join(lines)

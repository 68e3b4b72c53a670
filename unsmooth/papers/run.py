"""Runs one experiment of a paper, and writes what was published beside what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import timm
import torch

from unsmooth._version import __version__
from unsmooth.errors import UnsmoothError
from unsmooth.papers.catalogue import Experiment, open_experiment
from unsmooth.papers.claims import judge
from unsmooth.papers.costs import run_costs
from unsmooth.papers.diagnoses import run_looks
from unsmooth.papers.figures import curves_of, gains_of
from unsmooth.papers.request import RunRequest, first_of_each
from unsmooth.papers.rows import row_of
from unsmooth.papers.task_runs import run_tasks
from unsmooth.papers.theorems import run_theorem
from unsmooth.papers.trials import run_trials
from unsmooth.recipes.recipe import load_recipe
from unsmooth.report.figures import save
from unsmooth.report.reproduction_table import Row
from unsmooth.results.base import FORMAT
from unsmooth.results.reproduction import Reproduction
from unsmooth.utils.files import write

# Each gives the groups with their rows, and the data in words.
RUNNERS: dict[str, Callable[[Experiment, RunRequest], tuple[list[Row], str]]] = {
    "trial": run_trials, "diagnosis": run_looks, "bench": run_costs, "task": run_tasks, "theorem": run_theorem,
}  # fmt: skip


def reproduce(name: str, request: RunRequest) -> Reproduction:
    """Run PAPER/NAME in a folder; the same call again goes on where it was cut."""
    experiment = open_experiment(name)
    if request.out.exists() and not request.out.is_dir():
        raise UnsmoothError(f"{request.out} is a file; --out takes a folder")
    _refuse_unused(experiment, request)
    begun = time.time()
    groups, data = RUNNERS[experiment.kind](experiment, request)
    groups = _with_copies(experiment, request, groups)
    _draw(experiment, request, groups)
    found = Reproduction({
        "format": FORMAT, "kind": Reproduction.kind, "id": experiment.id, "title": experiment.title,
        "source": experiment.source, "evidence": experiment.evidence, "shows": experiment.shows,
        "fingerprint": experiment.fingerprint(),
        "scale": {"small": request.small, "data": data, "differs": differences(experiment, request, data)},
        "groups": groups, "claims": judge(experiment, groups),
        "made": {
            "unsmooth": __version__, "torch": torch.__version__, "timm": timm.__version__,
            "command": request.command, "seconds": round(time.time() - begun, 1),
        },
    })  # fmt: skip
    picture = gains_of(found.data)
    if picture is not None:
        write(request.out / f"{experiment.name}.png", save(picture, "png"))
        found.data["picture"] = f"{experiment.name}.png"
    found.write(request.out)
    return found


# What each kind has no use for, which is refused: nobody should think that it was heard.
UNUSED = {
    "trial": ("spec",),
    "diagnosis": ("seeds",),
    "bench": ("spec", "data", "checkpoints", "pretrained", "seeds", "overrides"),
    "task": ("spec",),
    "theorem": ("spec", "data", "only", "checkpoints", "pretrained", "seeds", "overrides"),
}  # fmt: skip
OWN = ("only", "overrides")  # and what a figure of one's own model has no use for
OPTIONS = {"checkpoints": "--checkpoint", "overrides": "a recipe field"}


def _refuse_unused(experiment: Experiment, request: RunRequest) -> None:
    for field in (*UNUSED[experiment.kind], *(OWN if request.spec else ())):
        if getattr(request, field):
            option = OPTIONS.get(field, f"--{field.replace('_', '-')}")
            own = " with a model of your own" if request.spec and field in OWN else ""
            raise UnsmoothError(f"{experiment.id} is a {experiment.kind}, with no use for {option}{own}: leave it out")
    if experiment.kind in ("trial", "task") and len(request.checkpoints) > 1:
        raise UnsmoothError(
            f"all arms of {experiment.id} start from one checkpoint, and {len(request.checkpoints)} were given"
        )
    if request.jobs < 1:
        raise UnsmoothError(f"jobs must be at least 1, not {request.jobs}")


def _with_copies(experiment: Experiment, request: RunRequest, groups: list[Row]) -> list[Row]:
    """Every group of the table in its order; one whose small hosts were run under another name has no values."""
    if not request.small or request.only or request.spec or not experiment.groups:
        return groups
    by_name = {group["name"]: group for group in groups}
    by_specs = {tuple(group.specs(small=True)): group.name for group in first_of_each(experiment.groups)}
    found = []
    for group in experiment.groups:
        specs = group.specs(small=True)
        rows = [row_of(group, at, spec) for at, spec in enumerate(specs)]
        found.append(by_name.get(group.name) or {"name": group.name, "rows": rows, "like": by_specs[tuple(specs)]})
    return found


def _draw(experiment: Experiment, request: RunRequest, groups: list[Row]) -> None:
    """The curves of each group that has no better picture."""
    for i, group in enumerate(groups):
        picture = None if "picture" in group else curves_of(group)
        if picture is not None:
            group["picture"] = f"{experiment.name}-{i + 1}.png"
            write(request.out / group["picture"], save(picture, "png"))


def differences(experiment: Experiment, request: RunRequest, data: str) -> list[str]:
    """What is not as in the paper: in scale, and in what could be known of it."""
    lines = [experiment.differs] if experiment.differs else []
    if request.spec:
        trained = request.pretrained or request.checkpoints or Path(request.spec).exists()
        random = [] if trained else ["its weights are random: give --checkpoint, or --pretrained"]
        return [*lines, f"the model is {request.spec}, on {data}; published: {experiment.full.data}", *random]
    if experiment.kind == "theorem":
        return lines
    if data != experiment.full.data:
        lines.append(f"data: {data}; published: {experiment.full.data}")
    if experiment.kind in ("trial", "task"):
        ours = _budget(request.scale(experiment).recipe, request.fields(experiment, experiment.groups[0]))
        theirs = _budget(experiment.full.recipe, {**experiment.full.overrides, **experiment.groups[0].overrides})
        lines += [f"budget: {ours}; at full scale: {theirs}"] if ours != theirs else []
    if request.small:
        hosts = [f"{group.small} for {group.host}" for group in request.groups(experiment) if group.small != group.host]
        lines += [f"hosts: {'; '.join(dict.fromkeys(hosts))}"] if hosts else []
    return lines


def _budget(name: str, overrides: Mapping[str, Any]) -> str:
    recipe = load_recipe(name, overrides)
    return f"{recipe.epochs} epoch{'s' if recipe.epochs != 1 else ''} in batches of {recipe.batch_size} (recipe {name})"

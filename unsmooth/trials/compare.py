"""Compare: the same budget, data order, augmentation and starting weights for every arm, and honest differences."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
import torch

from unsmooth._version import __version__
from unsmooth.data.images import first_valid_image
from unsmooth.data.splits import limit_splits, open_splits
from unsmooth.diagnosis import registry
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import Recipe, load_recipe, write_recipe
from unsmooth.results.base import FORMAT
from unsmooth.results.trial import Trial
from unsmooth.tasks.base import TaskRequest
from unsmooth.tasks.classification.task import Classification
from unsmooth.tasks.model_factory import build, check_patches
from unsmooth.training.distributed import init_processes
from unsmooth.training.observer import OnProgress
from unsmooth.training.run_record import check_batch_size, run_settings
from unsmooth.trials.arms import arms_of
from unsmooth.trials.measure import (
    Stage,
    Trained,
    describe,
    diagnose_arms,
    measure_costs,
    measure_differences,
    measure_robustness,
)
from unsmooth.trials.runner import Job, run_jobs, threads_of
from unsmooth.trials.verdict import judge
from unsmooth.utils.files import write

TRIAL, REPORT, RECIPE = "trial.json", "report.html", "recipe.toml"


def compare(
    specs: Sequence[str],
    data: str | Path,
    *,
    seeds: int = 3,
    recipe: str | Path | Recipe = "small",
    overrides: Mapping[str, Any] | None = None,
    out: str | Path = "trial",
    jobs: int = 1,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    val_data: str | Path | None = None,
    data_dir: str | Path | None = None,
    workers: int = 0,
    device: str = "",
    strict_data: bool = False,
    robustness: bool = False,
    costs: bool = True,
    vitals: str = "default",
    confidence: float = 0.95,
    on_progress: OnProgress | None = None,
    on_stage: Stage | None = None,
    command: str = "",
) -> Trial:
    """Train every spec with every seed on one budget and compare with the first one, in the folder `out`.

    Runs that are done are not repeated, so the same call goes on after a cut, and one with more specs or seeds adds to
    it. `jobs` runs train at the same time. `on_progress` is called with steps and epochs, `on_stage` with what comes next.
    """
    begun, folder = time.time(), Path(out)
    say = on_stage or (lambda text: None)
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
    arms = arms_of(specs)
    splits = limit_splits(open_splits(data, val_data, data_dir), chosen.train_images, chosen.val_images)
    given = {
        "data": data, "recipe": chosen, "val_data": val_data, "data_dir": data_dir, "workers": workers,
        "strict_data": strict_data, "checkpoint": checkpoint, "pretrained": pretrained, "command": command,
    }  # fmt: skip
    if seeds < 1 or jobs < 1:
        raise UnsmoothError(f"seeds and jobs must be at least 1, not {seeds} and {jobs}")
    if not 0.5 <= confidence < 1:
        raise UnsmoothError(f"confidence must be at least 0.5 and below 1, not {confidence}")
    if vitals:
        registry.select(vitals)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UnsmoothError("a trial starts its own processes: leave torchrun out, and use --jobs")
    there = str(init_processes(device).device)
    trained = Trained(arms, folder, seeds, splits, chosen, confidence, there, workers, strict_data)
    _check(trained, val_data, checkpoint, pretrained)
    write(folder / RECIPE, write_recipe(chosen).encode())
    planned = [(arm, seed) for seed in range(seeds) for arm in arms]
    todo = [
        Job(arm.run_name(seed), {"spec": arm.spec, "seed": seed, "out": arm.folder(folder, seed), **given})
        for arm, seed in planned
        if not trained.run(arm, seed).done
    ]
    say(f"training {len(todo)} of {len(planned)} runs" if todo else "every run is done already")
    failed = run_jobs(todo, jobs, device, on_progress or (lambda *news: None))
    rows = [describe(arm, trained, failed) for arm in arms]
    measure_differences(rows, trained)
    if vitals:
        diagnose_arms(rows, trained, vitals, say)
    if robustness:
        measure_robustness(rows, trained, say)
    if costs:
        measure_costs(rows, trained, say)
    found = {
        "format": FORMAT, "kind": "trial", "data": _data(trained), "recipe_name": _name(recipe),
        "recipe": chosen.to_json(), "seeds": list(range(seeds)), "confidence": confidence, "arms": rows,
        "made": {
            "unsmooth": __version__, "torch": torch.__version__, "timm": timm.__version__,
            "python": platform.python_version(), "machine": platform.machine(), "threads": threads_of(jobs),
            "jobs": jobs, "device": there, "command": command, "seconds": round(time.time() - begun, 1),
        },
    }  # fmt: skip
    found["verdict"] = judge(found)
    trial = Trial(found)
    trial.to_json(folder / TRIAL)
    trial.save(folder / REPORT)
    return trial


def _check(trained: Trained, val_data: str | Path | None, checkpoint: str | Path | None, pretrained: bool) -> None:
    """Every mistake that can be seen before the first step."""
    splits, recipe, folder = trained.splits, trained.recipe, trained.folder
    if folder.exists() and not folder.is_dir():
        raise UnsmoothError(f"{folder} is a file; --out takes a folder")
    for arm in trained.arms:
        for seed in range(trained.seeds):
            request = TaskRequest(
                arm.spec, splits.name, recipe, seed, None if checkpoint is None else Path(checkpoint), pretrained,
                None if val_data is None else str(val_data),
            )  # fmt: skip
            task = Classification(request, splits)
            check_batch_size(task, recipe)
            trained.run(arm, seed).check(run_settings(task))
    picture = first_valid_image(splits.train).size
    first_valid_image(splits.val)
    for arm in trained.arms:
        if not all(trained.run(arm, seed).done for seed in range(trained.seeds)):
            model = build(arm.spec, splits.classes, recipe, 0, checkpoint, pretrained)
            check_patches(model, picture, arm.spec, splits.name)


def _data(trained: Trained) -> dict[str, Any]:
    splits, skipped = trained.splits, dict[str, str]()
    for arm in trained.arms:
        for seed in range(trained.seeds):
            for names in (trained.run(arm, seed).result() or {}).get("skipped", {}).values():
                skipped |= names
    model = next((model for arm in trained.arms if (model := trained.first_model(arm)) is not None), None)
    return {
        "name": splits.name, "train": splits.train.count, "val": splits.val.count, "classes": splits.classes,
        "image": None if model is None else list(trained.pictures(model)[1].size), "skipped": skipped,
    }  # fmt: skip


def _name(recipe: str | Path | Recipe) -> str:
    return "its own" if isinstance(recipe, Recipe) else Path(recipe).stem

"""Tables of tasks other than classification: every arm is trained by `train` with every seed.

For the task `mae`, the pre-trained encoders are then fine-tuned as classifiers, and the row has their accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from unsmooth.papers.catalogue import Experiment, PublishedArm, PublishedGroup, treated
from unsmooth.papers.request import RunRequest
from unsmooth.papers.rows import add_measured, published_row, with_printed_rows
from unsmooth.papers.small_data import WRITERS
from unsmooth.papers.trials import check_start
from unsmooth.recipes.recipe import Recipe, load_recipe
from unsmooth.results.reproduction import ArmResult, GroupResult
from unsmooth.results.training import TrainingResult
from unsmooth.spec import ModelSpec, bare_name
from unsmooth.tasks.model_factory import build
from unsmooth.training.observer import ProgressObserver
from unsmooth.training.run import train
from unsmooth.trials.arms import PlannedArm

CONFIDENCE = 0.95


def run_tasks(experiment: Experiment, request: RunRequest) -> tuple[list[GroupResult], str]:
    """Train every arm of every group. Returns the groups and a description of the data."""
    check_start(experiment, request)
    _check_finetuning(experiment, request)
    data, description = _data(experiment, request)
    groups = []
    for group in request.groups(experiment):
        specs, rows = group.specs(request.small), []
        results = [
            _arm(experiment, group, arm, spec, data, request) for arm, spec in zip(group.models, specs, strict=True)
        ]
        for i, (spec, runs) in enumerate(zip(specs, results, strict=True)):
            row = published_row(group, i, spec)
            for name in experiment.measures:
                _add_metric(row, name, [run[name] for run in runs], [run[name] for run in results[0]] if i else None)
            rows.append(row)
        groups.append(GroupResult(name=group.name, rows=with_printed_rows(group, rows)))
    return groups, description


def _data(experiment: Experiment, request: RunRequest) -> tuple[str, str]:
    """The name of the data and its description. At small scale, data in the format of the original is generated."""
    if request.data is None and request.small and experiment.task in WRITERS:
        folder = request.out / "data"
        return str(folder), WRITERS[experiment.task](folder)
    data = request.images(experiment)
    return data, Path(data).name


def _arm(
    experiment: Experiment, group: PublishedGroup, arm: PublishedArm, spec: ModelSpec, data: str, request: RunRequest
) -> list[TrainingResult]:
    """The results of all runs of an arm."""
    scale = request.scale(experiment)
    results = []
    for seed in range(request.seeds_of(experiment)):
        folder = request.folder(group) / PlannedArm(spec, "").slug / f"seed{seed}"
        run = {
            "seed": seed, "recipe": request.recipe(experiment, group), "task": experiment.task,
            "options": scale.options, "pretrained": request.pretrained,
            "checkpoint": request.checkpoints[0] if request.checkpoints else None,
        }  # fmt: skip
        if experiment.finetune:
            name = f"pre-training {bare_name(spec)}, seed {seed}"
            _train(spec, data, folder / "pretraining", request, name, **run)
            results.append(_finetune(experiment, arm, data, folder, seed, request))
        else:
            results.append(_train(spec, data, folder, request, f"{group.name}, seed {seed}", **run))
    return results


def _finetune(
    experiment: Experiment, arm: PublishedArm, data: str, folder: Path, seed: int, request: RunRequest
) -> TrainingResult:
    """Fine-tune a pre-trained encoder with the same remedies."""
    spec = _finetune_spec(experiment, arm, request)
    return _train(
        spec, data, folder / "finetuning", request, f"fine-tuning {bare_name(spec)}, seed {seed}", seed=seed,
        recipe=_finetune_recipe(experiment, request), checkpoint=folder / "pretraining" / "last" / "encoder",
    )  # fmt: skip


def _finetune_spec(experiment: Experiment, arm: PublishedArm, request: RunRequest) -> ModelSpec:
    host = experiment.small_finetune if request.small else experiment.finetune
    return treated(host, arm.add)


def _finetune_recipe(experiment: Experiment, request: RunRequest) -> Recipe:
    """The recipe of the fine-tuning. Fields of the request apply to both pre-training and fine-tuning."""
    if request.small:
        return load_recipe(experiment.small.recipe, {**experiment.small.overrides, **request.overrides})
    return load_recipe(experiment.finetune_recipe, {**experiment.finetune_overrides, **request.overrides})


def _check_finetuning(experiment: Experiment, request: RunRequest) -> None:
    """Find mistakes in the fine-tuning before pre-training starts."""
    if experiment.finetune:
        for arm in (arm for group in request.groups(experiment) for arm in group.models):
            build(_finetune_spec(experiment, arm, request), 10, _finetune_recipe(experiment, request), 0)


def _train(spec: ModelSpec, data: str, folder: Path, request: RunRequest, title: str, **run: Any) -> TrainingResult:
    request.on_stage(title)
    observer = None if request.on_progress is None else ProgressObserver(title, request.on_progress)
    return train(
        spec, data, out=folder, workers=request.workers, device=request.device, command=request.command,
        data_dir=request.data_dir, observer=observer, **run,
    )  # fmt: skip


def _add_metric(row: ArmResult, name: str, own: Sequence[float], base: Sequence[float] | None) -> None:
    """Add the mean over seeds, and the difference to the first arm, paired by seed, with a Student's t interval."""
    gain = low = high = None
    if base is not None:
        differences = np.array(own) - np.array(base)
        gain = float(differences.mean())
        if len(differences) > 1:
            half_width = stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1) * stats.sem(differences)
            low, high = gain - float(half_width), gain + float(half_width)
    sd = float(np.std(own, ddof=1)) if len(own) > 1 else None
    add_measured(row, name, float(np.mean(own)), sd=sd, seeds=len(own), gain=gain, low=low, high=high)

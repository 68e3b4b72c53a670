"""Tables of other tasks than classification: every arm is trained by `unsmooth train --task`, with every seed.

A task `mae` is pre-training: its encoders are then fine-tuned as classifiers, which is what the paper's row shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from unsmooth.papers.catalogue import Arm, Experiment, Group
from unsmooth.papers.request import RunRequest
from unsmooth.papers.rows import measured, row_of
from unsmooth.papers.small_data import MAKERS
from unsmooth.papers.trials import check_start
from unsmooth.recipes.recipe import Recipe, load_recipe
from unsmooth.report.reproduction_table import Row
from unsmooth.spec import bare_name
from unsmooth.tasks.model_factory import build
from unsmooth.training.observer import ProgressObserver
from unsmooth.training.run import train
from unsmooth.trials.arms import Arm as TrialArm

CONFIDENCE = 0.95


def run_tasks(experiment: Experiment, request: RunRequest) -> tuple[list[Row], str]:
    check_start(experiment, request)
    _check_finetuning(experiment, request)
    data, about = _data(experiment, request)
    groups = []
    for group in request.groups(experiment):
        specs, rows = group.specs(request.small), []
        results = [
            _arm(experiment, group, arm, spec, data, request) for arm, spec in zip(group.arms, specs, strict=True)
        ]
        for at, (spec, found) in enumerate(zip(specs, results, strict=True)):
            row = row_of(group, at, spec)
            for name in experiment.measures:
                _put(row, name, [run[name] for run in found], [run[name] for run in results[0]] if at else None)
            rows.append(row)
        groups.append({"name": group.name, "rows": rows})
    return groups, about


def _data(experiment: Experiment, request: RunRequest) -> tuple[str, str]:
    """The user's data, or, for --small, some that are made in the format of the true ones."""
    if request.data is None and request.small and experiment.task in MAKERS:
        folder = request.out / "data"
        return str(folder), MAKERS[experiment.task](folder)
    data = request.images(experiment)
    return data, Path(data).name


def _arm(
    experiment: Experiment, group: Group, arm: Arm, spec: str, data: str, request: RunRequest
) -> list[dict[str, Any]]:
    scale = request.scale(experiment)
    results = []
    for seed in range(request.seeds or scale.seeds):
        folder = request.folder(group) / TrialArm(spec, "").slug / f"seed{seed}"
        given = {"seed": seed, "recipe": scale.recipe, **request.fields(experiment, group)}
        if experiment.finetune:
            results.append(_tuned(experiment, arm, spec, data, folder, given, request))
        else:
            own = {"task": experiment.task, "options": scale.options, **_start(request)}
            results.append(_train(spec, data, folder, request, f"{group.name}, seed {seed}", **given, **own))
    return results


def _tuned(
    experiment: Experiment, arm: Arm, spec: str, data: str, folder: Path, given: dict[str, Any], request: RunRequest
) -> dict[str, Any]:
    """Pre-train, then fine-tune the encoder with the same remedies."""
    scale, seed = request.scale(experiment), given["seed"]
    _train(spec, data, folder / "pretraining", request, f"pre-training {bare_name(spec)}, seed {seed}",
           task=experiment.task, options=scale.options, **_start(request), **given)  # fmt: skip
    tuned = _tuned_spec(experiment, arm, request)
    return _train(tuned, data, folder / "finetuning", request, f"fine-tuning {bare_name(tuned)}, seed {seed}", seed=seed,
                  recipe=_tuning(experiment, request), checkpoint=folder / "pretraining" / "last" / "encoder")  # fmt: skip


def _tuned_spec(experiment: Experiment, arm: Arm, request: RunRequest) -> str:
    host = experiment.small_finetune if request.small else experiment.finetune
    return host + (f"+{arm.add}" if arm.add else "")


def _tuning(experiment: Experiment, request: RunRequest) -> Recipe:
    """The recipe of the fine-tuning; what the user gives holds for both trainings."""
    if request.small:
        return load_recipe(experiment.small.recipe, {**experiment.small.overrides, **request.overrides})
    return load_recipe(experiment.finetune_recipe, {**experiment.finetune_overrides, **request.overrides})


def _start(request: RunRequest) -> dict[str, Any]:
    return {"pretrained": request.pretrained, "checkpoint": request.checkpoints[0] if request.checkpoints else None}


def _check_finetuning(experiment: Experiment, request: RunRequest) -> None:
    """Find mistakes of the last step before the first one begins."""
    if experiment.finetune:
        for arm in (arm for group in request.groups(experiment) for arm in group.arms):
            build(_tuned_spec(experiment, arm, request), 10, _tuning(experiment, request), 0)


def _train(spec: str, data: str, folder: Path, request: RunRequest, title: str, **given: Any) -> dict[str, Any]:
    request.on_stage(title)
    return train(
        spec, data, out=folder, workers=request.workers, device=request.device, command=request.command,
        data_dir=request.data_dir, observer=ProgressObserver(title, request.on_progress) if request.on_progress is not None else None, **given,
    )  # fmt: skip


def _put(row: Row, name: str, ours: Sequence[float], base: Sequence[float] | None) -> None:
    """The mean over seeds, and the difference to the first arm, paired by seed, with Student's interval."""
    gain = low = high = None
    if base is not None:
        differences = np.array(ours) - np.array(base)
        gain = float(differences.mean())
        if len(differences) > 1:
            reach = stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1) * stats.sem(differences)
            low, high = gain - float(reach), gain + float(reach)
    sd = float(np.std(ours, ddof=1)) if len(ours) > 1 else None
    measured(row, name, float(np.mean(ours)), sd=sd, seeds=len(ours), gain=gain, low=low, high=high)

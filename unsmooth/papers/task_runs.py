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
from unsmooth.papers.request import Wish
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


def run_tasks(experiment: Experiment, wish: Wish) -> tuple[list[Row], str]:
    check_start(experiment, wish)
    _check_finetuning(experiment, wish)
    data, about = _data(experiment, wish)
    groups = []
    for group in wish.groups(experiment):
        specs, rows = group.specs(wish.small), []
        results = [_arm(experiment, group, arm, spec, data, wish) for arm, spec in zip(group.arms, specs, strict=True)]
        for at, (spec, found) in enumerate(zip(specs, results, strict=True)):
            row = row_of(group, at, spec)
            for name in experiment.measures:
                _put(row, name, [run[name] for run in found], [run[name] for run in results[0]] if at else None)
            rows.append(row)
        groups.append({"name": group.name, "rows": rows})
    return groups, about


def _data(experiment: Experiment, wish: Wish) -> tuple[str, str]:
    """The user's data, or, for --small, some that are made in the format of the true ones."""
    if wish.data is None and wish.small and experiment.task in MAKERS:
        folder = wish.out / "data"
        return str(folder), MAKERS[experiment.task](folder)
    data = wish.images(experiment)
    return data, Path(data).name


def _arm(experiment: Experiment, group: Group, arm: Arm, spec: str, data: str, wish: Wish) -> list[dict[str, Any]]:
    scale = wish.scale(experiment)
    results = []
    for seed in range(wish.seeds or scale.seeds):
        folder = wish.folder(group) / TrialArm(spec, "").slug / f"seed{seed}"
        given = {"seed": seed, "recipe": scale.recipe, "overrides": wish.fields(experiment, group)}
        if experiment.finetune:
            results.append(_tuned(experiment, arm, spec, data, folder, given, wish))
        else:
            own = {"task": experiment.task, "options": scale.options, **_start(wish)}
            results.append(_train(spec, data, folder, wish, f"{group.name}, seed {seed}", **given, **own))
    return results


def _tuned(
    experiment: Experiment, arm: Arm, spec: str, data: str, folder: Path, given: dict[str, Any], wish: Wish
) -> dict[str, Any]:
    """Pre-train, then fine-tune the encoder with the same remedies."""
    scale, seed = wish.scale(experiment), given["seed"]
    _train(spec, data, folder / "pretraining", wish, f"pre-training {bare_name(spec)}, seed {seed}",
           task=experiment.task, options=scale.options, **_start(wish), **given)  # fmt: skip
    tuned = _tuned_spec(experiment, arm, wish)
    return _train(tuned, data, folder / "finetuning", wish, f"fine-tuning {bare_name(tuned)}, seed {seed}", seed=seed,
                  recipe=_tuning(experiment, wish), checkpoint=folder / "pretraining" / "last" / "encoder")  # fmt: skip


def _tuned_spec(experiment: Experiment, arm: Arm, wish: Wish) -> str:
    host = experiment.small_finetune if wish.small else experiment.finetune
    return host + (f"+{arm.add}" if arm.add else "")


def _tuning(experiment: Experiment, wish: Wish) -> Recipe:
    """The recipe of the fine-tuning; what the user gives holds for both trainings."""
    if wish.small:
        return load_recipe(experiment.small.recipe, {**experiment.small.overrides, **wish.overrides})
    return load_recipe(experiment.finetune_recipe, {**experiment.finetune_overrides, **wish.overrides})


def _start(wish: Wish) -> dict[str, Any]:
    return {"pretrained": wish.pretrained, "checkpoint": wish.checkpoints[0] if wish.checkpoints else None}


def _check_finetuning(experiment: Experiment, wish: Wish) -> None:
    """Find mistakes of the last step before the first one begins."""
    if experiment.finetune:
        for arm in (arm for group in wish.groups(experiment) for arm in group.arms):
            build(_tuned_spec(experiment, arm, wish), 10, _tuning(experiment, wish), 0)


def _train(spec: str, data: str, folder: Path, wish: Wish, title: str, **given: Any) -> dict[str, Any]:
    wish.on_stage(title)
    return train(
        spec, data, out=folder, workers=wish.workers, device=wish.device, command=wish.command,
        data_dir=wish.data_dir, observer=ProgressObserver(title, wish.on_progress) if wish.on_progress is not None else None, **given,
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

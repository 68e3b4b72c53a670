"""Check all arguments of a trial before the first training step."""

from __future__ import annotations

from unsmooth.data.images import first_valid_image
from unsmooth.data.splits import Splits
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import write_recipe
from unsmooth.tasks.base import TaskRequest
from unsmooth.tasks.classification.task import Classification
from unsmooth.tasks.model_factory import build, check_patches
from unsmooth.training.run_dir import RunDir
from unsmooth.training.run_record import check_batch_size, run_settings
from unsmooth.trials.arms import PlannedArm
from unsmooth.trials.runs import TrialRuns
from unsmooth.trials.sequential import FIRST_ANALYSIS
from unsmooth.trials.sweep import OPTIONS, Sweep


def check_trial(runs: TrialRuns, sweep: Sweep | None) -> None:
    """Check settings, directories, batch sizes and models."""
    splits, settings, directory = runs.splits, runs.settings, runs.directory
    if directory.path.exists() and not directory.path.is_dir():
        raise UnsmoothError(f"{directory.path} is a file. Use a directory as out (--out).")
    if foreign := directory.foreign(write_recipe(runs.recipe)):
        raise UnsmoothError(f"{foreign} is not of a trial and would be overwritten. Use another out (--out).")
    if settings.until is not None and settings.seeds < FIRST_ANALYSIS:
        raise UnsmoothError(
            f"until needs at least {FIRST_ANALYSIS} seeds, the most to train (got seeds={settings.seeds})"
        )
    if sweep is None:
        check_run_directories(runs)
    else:
        _check_sweep(runs, sweep)
    picture = first_valid_image(splits.train).size
    first_valid_image(splits.val)
    for arm in runs.arms:
        if sweep is not None or not all(directory.run(arm, seed).done for seed in runs.seeds):
            model = build(arm.spec, splits.classes, runs.recipe_of(arm), 0, settings.checkpoint, settings.pretrained)
            check_patches(model, picture, str(arm.spec), splits.name)


def check_run_directories(runs: TrialRuns) -> None:
    """Check that every run directory is empty or holds a run with the same settings."""
    for arm in runs.arms:
        for seed in runs.seeds:
            _check_run(runs, arm, arm.first_seed + seed, runs.splits, runs.directory.run(arm, seed), {})


def _check_sweep(runs: TrialRuns, sweep: Sweep) -> None:
    splits = sweep.splits(runs.splits)
    for arm in runs.arms:
        if sweep.field in arm.fields:
            raise UnsmoothError(f"{sweep.field} of {arm.name} is set by arm_fields and by the sweep. Use one of them.")
        for value in sweep.values:
            run = runs.directory.sweep_run(arm, sweep.field, value)
            _check_run(runs, sweep.tried(arm, value), 0, splits, run, OPTIONS)


def _check_run(
    runs: TrialRuns, arm: PlannedArm, seed: int, splits: Splits, run: RunDir, options: dict[str, float]
) -> None:
    recipe, settings = runs.recipe_of(arm), runs.settings
    request = TaskRequest(
        arm.spec, splits.name, recipe, seed, settings.checkpoint, settings.pretrained, settings.val_data,
        options=options,
    )  # fmt: skip
    task = Classification(request, splits)
    check_batch_size(task, recipe)
    run.check(run_settings(task))

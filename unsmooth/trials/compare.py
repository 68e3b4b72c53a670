"""`compare`: train several models with the same budget, data order, augmentation and initial weights, and compare."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unsmooth.data.images import first_valid_image
from unsmooth.data.splits import limit_splits, open_splits
from unsmooth.diagnosis import registry
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import Recipe, resolve_fields, write_recipe
from unsmooth.results.provenance import versions
from unsmooth.results.trial import Trial, TrialData, TrialProvenance
from unsmooth.tasks.base import TaskRequest
from unsmooth.tasks.classification.task import Classification
from unsmooth.tasks.model_factory import build, check_patches
from unsmooth.training.distributed import init_processes
from unsmooth.training.observer import OnProgress
from unsmooth.training.run_record import check_batch_size, run_settings
from unsmooth.trials.arms import plan_arms
from unsmooth.trials.directory import TrialDirectory
from unsmooth.trials.measure import (
    OnStage,
    TrialRuns,
    diagnose_arms,
    measure_costs,
    measure_differences,
    measure_robustness,
    read_arm,
    reopen_without_scores,
)
from unsmooth.trials.runner import Job, run_jobs, threads_per_job
from unsmooth.trials.settings import CompareSettings
from unsmooth.trials.verdict import trial_verdict
from unsmooth.utils.files import write


def compare(
    specs: Sequence[str],
    data: str | Path,
    *,
    recipe: str | Path | Recipe = "small",
    settings: CompareSettings | None = None,
    arm_fields: Mapping[str, Mapping[str, Any]] | None = None,
    on_progress: OnProgress | None = None,
    on_stage: OnStage | None = None,
    command: str = "",
    **fields: Any,
) -> Trial:
    """Train every spec with every seed on one budget, and compare each with the first spec.

    Runs that are done are not repeated: the same call resumes an interrupted trial, and a call with more specs or seeds
    extends it.

    Args:
        specs: At least two model specs. The first one is the baseline.
        data: Training and validation images: a folder, a .npz file or the name of a dataset.
        recipe: Name of a recipe, a .toml file or a `Recipe`, for all runs.
        settings: Settings of the trial. Default: `CompareSettings()`.
        arm_fields: Recipe fields of single arms, by spec, for published protocols that change the recipe with the
            model. The report names them, since such arms are not on the same budget.
        on_progress: Called with the name of a run, its steps done, its total steps, and the metrics of an epoch.
        on_stage: Called with a description of each stage of the trial.
        command: Command line to record in the result.
        **fields: Fields of `CompareSettings`, such as `seeds`, `out` or `jobs`, and of `Recipe`, such as `epochs` or
            `lr`. They replace those of `settings` and `recipe`. `vitals` is the field of `CompareSettings`.

    Returns:
        The trial. It is also written to the trial directory, as trial.json and report.html.

    Raises:
        UnsmoothError: If a name or value is not valid, or if the trial directory holds runs of another recipe. This is
            checked before the first run starts.

    Example:
        >>> import tempfile, unsmooth
        >>> host = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2)"
        >>> trial = unsmooth.compare(
        ...     [host, host + "+attn_scale"], "digits", epochs=1, warmup_epochs=0, train_images=128, val_images=40,
        ...     seeds=1, costs=False, vitals="none", out=tempfile.mkdtemp(),
        ... )
        >>> trial.keys()
        ['plain', 'attn_scale']
        >>> len(trial["attn_scale"].runs)
        1
    """
    started = time.time()
    chosen, resolved = resolve_fields(CompareSettings, settings, recipe, fields)
    report_stage = on_stage or (lambda text: None)
    arms = plan_arms(specs, arm_fields)
    splits = open_splits(data, chosen.val_data, chosen.data_dir)
    splits = limit_splits(splits, resolved.train_images, resolved.val_images)
    if chosen.vitals != "none":
        registry.select(chosen.vitals)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UnsmoothError("compare starts its own processes. Run it without torchrun, and set jobs (--jobs).")
    device = str(init_processes(chosen.device).device)
    directory = TrialDirectory(chosen.out)
    runs = TrialRuns(arms, directory, chosen, resolved, splits, device)
    _check(runs)
    write(directory.recipe, write_recipe(resolved))
    failures = _train(runs, data, command, on_progress or (lambda *news: None), report_stage)
    results = [read_arm(arm, runs, failures) for arm in arms]
    measure_differences(results, runs)
    if chosen.vitals != "none":
        diagnose_arms(results, runs, report_stage)
    if chosen.robustness:
        measure_robustness(results, runs, report_stage)
    if chosen.costs:
        measure_costs(results, runs, report_stage)
    trial = Trial(
        data=_describe_data(runs), recipe_name="custom" if isinstance(recipe, Recipe) else Path(recipe).stem,
        recipe=resolved.to_json(), seeds=list(range(chosen.seeds)), confidence=chosen.confidence, arms=results,
        made=TrialProvenance(
            **versions(), command=command, seconds=round(time.time() - started, 1), python=platform.python_version(),
            machine=platform.machine(), threads=threads_per_job(chosen.jobs), jobs=chosen.jobs, device=device,
        ),
        verdict=trial_verdict(results, chosen.seeds),
    )  # fmt: skip
    trial.to_json(directory.result)
    trial.save(directory.report)
    return trial


def _train(
    runs: TrialRuns, data: str | Path, command: str, on_progress: OnProgress, report_stage: OnStage
) -> dict[str, str]:
    """Train every run that is not done. Returns the reasons of failed runs by run name."""
    settings = runs.settings
    for arm in runs.arms:
        for seed in runs.seeds:
            if reason := reopen_without_scores(runs.directory.run(arm, seed)):
                report_stage(f"validating {arm.run_name(seed)} again: {reason}")
    shared = {
        "data": data, "val_data": settings.val_data, "data_dir": settings.data_dir,
        "workers": settings.workers, "strict_data": settings.strict_data, "checkpoint": settings.checkpoint,
        "pretrained": settings.pretrained, "command": command,
    }  # fmt: skip
    planned = [(arm, seed) for seed in range(settings.seeds) for arm in runs.arms]
    jobs = [
        Job(
            arm.run_name(seed),
            {
                "spec": arm.spec,
                "seed": seed,
                "out": runs.directory.run_path(arm, seed),
                "recipe": runs.recipe_of(arm),
                **shared,
            },
        )
        for arm, seed in planned
        if not runs.directory.run(arm, seed).done
    ]
    report_stage(f"training {len(jobs)} of {len(planned)} runs" if jobs else "all runs are done already")
    return run_jobs(jobs, settings.jobs, settings.device, on_progress)


def _check(runs: TrialRuns) -> None:
    """Check all arguments before the first training step."""
    splits, settings, directory = runs.splits, runs.settings, runs.directory
    if directory.path.exists() and not directory.path.is_dir():
        raise UnsmoothError(f"{directory.path} is a file. Use a folder as out (--out).")
    if foreign := directory.foreign(write_recipe(runs.recipe)):
        raise UnsmoothError(f"{foreign} is not of a trial and would be overwritten. Use another --out.")
    for arm in runs.arms:
        recipe = runs.recipe_of(arm)
        for seed in range(settings.seeds):
            request = TaskRequest(
                arm.spec, splits.name, recipe, seed, settings.checkpoint, settings.pretrained, settings.val_data
            )
            task = Classification(request, splits)
            check_batch_size(task, recipe)
            directory.run(arm, seed).check(run_settings(task))
    picture = first_valid_image(splits.train).size
    first_valid_image(splits.val)
    for arm in runs.arms:
        if not all(directory.run(arm, seed).done for seed in range(settings.seeds)):
            model = build(arm.spec, splits.classes, runs.recipe_of(arm), 0, settings.checkpoint, settings.pretrained)
            check_patches(model, picture, str(arm.spec), splits.name)


def _describe_data(runs: TrialRuns) -> TrialData:
    splits, skipped = runs.splits, dict[str, str]()
    for arm in runs.arms:
        for seed in range(runs.settings.seeds):
            for names in (runs.directory.run(arm, seed).result() or {}).get("skipped", {}).values():
                skipped |= names
    model = next((model for arm in runs.arms if (model := runs.first_model(arm)) is not None), None)
    return TrialData(
        name=splits.name, train=splits.train.count, val=splits.val.count, classes=splits.classes,
        image=None if model is None else runs.preprocessing(model).size, skipped=skipped,
    )  # fmt: skip

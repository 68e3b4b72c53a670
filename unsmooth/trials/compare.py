"""`compare`: train several models with the same budget, data order, augmentation and initial weights, and compare."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unsmooth.data.splits import limit_splits, open_splits
from unsmooth.diagnosis import registry
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import Recipe, resolve_fields, write_recipe
from unsmooth.results.provenance import versions
from unsmooth.results.trial import ArmSweep, Power, Trial, TrialData, TrialProvenance
from unsmooth.spec import ModelSpec
from unsmooth.training.observer import OnProgress
from unsmooth.trials.arms import ArmFields, plan_arms
from unsmooth.trials.checks import check_run_directories, check_trial
from unsmooth.trials.controls import control_arms
from unsmooth.trials.directory import TrialDirectory
from unsmooth.trials.measure import diagnose_arms, measure_costs, measure_differences, measure_robustness, read_arm
from unsmooth.trials.power import power_of, state_power
from unsmooth.trials.rounds import train_runs
from unsmooth.trials.runner import AllRuns, threads_per_job
from unsmooth.trials.runs import OnStage, TrialRuns
from unsmooth.trials.settings import CompareSettings
from unsmooth.trials.start import measure_starts, start_of
from unsmooth.trials.sweep import read_sweep, run_sweep, sweep_jobs, with_chosen
from unsmooth.trials.verdict import trial_verdict
from unsmooth.utils.files import write
from unsmooth.utils.processes import init_processes
from unsmooth.utils.progress import Progress, show_progress


def compare(
    specs: Sequence[str | ModelSpec],
    data: str | Path,
    *,
    recipe: str | Path | Recipe = "small",
    settings: CompareSettings | None = None,
    arm_fields: ArmFields | None = None,
    on_progress: OnProgress | None = None,
    on_stage: OnStage | None = None,
    progress: Progress | bool | None = None,
    command: str = "",
    **fields: Any,
) -> Trial:
    """Train every spec with every seed on one budget, and compare each with the first spec.

    Runs that are done are not repeated: the same call resumes an interrupted trial, and a call with more specs or seeds
    extends it.

    Args:
        specs: At least two model specs, as text or parsed. The first one is the baseline.
        data: Training and validation images: a folder, a .npz file or the name of a dataset.
        recipe: Name of a recipe, a .toml file or a `Recipe`, for all runs.
        settings: Settings of the trial. Default: `CompareSettings()`.
        arm_fields: Recipe fields of single arms, by spec, for published protocols that change the recipe with the
            model. The report names them, since such arms are not on the same budget.
        on_progress: Called with the name of a run, its steps done, its total steps, and the metrics of an epoch.
        on_stage: Called with a description of each stage of the trial.
        progress: Progress of all runs together: False for none; by default it is shown on a terminal and in a notebook,
            unless `on_progress` is given; a function is called with "runs", the runs done and the number of all runs.
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
    report_progress, report_stage = on_progress or (lambda *news: None), on_stage or (lambda text: None)
    runs = _plan(specs, data, recipe, settings, arm_fields, command, fields)
    planned, sweep, directory = (
        runs.settings.seeds,
        read_sweep(runs.settings.sweep, runs.settings.sweep_epochs),
        runs.directory,
    )
    check_trial(runs, sweep)
    runs.reopen_unscored(report_stage)
    write(directory.recipe, write_recipe(runs.recipe))
    stated = state_power(with_chosen(runs, sweep))
    report_stage(stated.text)
    starts = measure_starts(runs, report_stage)
    sweeps: list[ArmSweep] | None = None
    with show_progress(False if progress is None and on_progress is not None else progress) as report:
        waiting = len(runs.jobs(runs.seeds)) + (len(sweep_jobs(runs, sweep)) if sweep is not None else 0)
        planned_runs = len(runs.arms) * (len(runs.seeds) + (len(sweep.values) if sweep is not None else 0))
        report_progress = AllRuns(report_progress, report, planned_runs - waiting, planned_runs)
        if sweep is not None:
            arms, sweeps = run_sweep(runs, sweep, report_progress, report_stage)
            runs = replace(runs, arms=arms)
            check_run_directories(runs)
        runs, failures, stopped = train_runs(runs, report_progress, report_stage)
    chosen, resolved = runs.settings, runs.recipe
    results = [read_arm(arm, runs, failures) for arm in runs.arms]
    for i, arm in enumerate(results):
        arm.start, arm.sweep = starts[i], sweeps[i] if sweeps is not None else None
    measure_differences(results, runs, planned)
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
            machine=platform.machine(), threads=threads_per_job(chosen.jobs), jobs=chosen.jobs, device=runs.device,
        ),
        verdict=trial_verdict(results, chosen.seeds, stopped), power=stated, stopping=stopped, start=start_of(runs),
    )  # fmt: skip
    trial.to_json(directory.result)
    trial.save(directory.report)
    return trial


def power(
    specs: Sequence[str | ModelSpec],
    data: str | Path,
    *,
    recipe: str | Path | Recipe = "small",
    settings: CompareSettings | None = None,
    arm_fields: ArmFields | None = None,
    **fields: Any,
) -> Power:
    """The difference that `compare` with the same arguments can detect. Nothing is trained or written.

    Args:
        specs: Model specs, as in `compare`.
        data: Training and validation images.
        recipe: Recipe of all runs.
        settings: Settings of the trial.
        arm_fields: Recipe fields of single arms, by spec.
        **fields: Fields of `CompareSettings` and of `Recipe`.

    Returns:
        The detectable difference, with the expected accuracy and variation that it follows from. They are measured on
        runs of the trial directory if it has some, and assumed otherwise.

    Example:
        >>> import tempfile
        >>> from unsmooth.trials.compare import power
        >>> host = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2)"
        >>> stated = power([host, host + "+attn_scale"], "digits", seeds=5, out=tempfile.mkdtemp())
        >>> stated.images, round(100 * stated.difference, 1)
        (359, 4.4)
    """
    runs = _plan(specs, data, recipe, settings, arm_fields, "", fields)
    return power_of(with_chosen(runs, read_sweep(runs.settings.sweep, runs.settings.sweep_epochs)))


def _plan(
    specs: Sequence[str | ModelSpec], data: str | Path, recipe: str | Path | Recipe, settings: CompareSettings | None,
    arm_fields: ArmFields | None, command: str, fields: Mapping[str, Any],
) -> TrialRuns:  # fmt: skip
    """Read all arguments and open the data."""
    chosen, resolved = resolve_fields(CompareSettings, settings, recipe, fields)
    arms = plan_arms(specs, arm_fields)
    splits = open_splits(data, chosen.val_data, chosen.data_dir)
    splits = limit_splits(splits, resolved.train_images, resolved.val_images)
    if chosen.vitals != "none":
        registry.select(chosen.vitals)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UnsmoothError("compare starts its own processes. Run it without torchrun, and set jobs (--jobs).")
    device = str(init_processes(chosen.device).device)
    runs = TrialRuns(arms, TrialDirectory(chosen.out), chosen, resolved, splits, data, device, command)
    return replace(runs, arms=[*arms, *control_arms(runs)])


def _describe_data(runs: TrialRuns) -> TrialData:
    splits, skipped = runs.splits, dict[str, str]()
    for arm in runs.arms:
        for seed in range(runs.settings.seeds):
            for names in (runs.directory.run(arm, seed).result() or {}).get("skipped", {}).values():
                skipped |= names
    return TrialData(
        name=splits.name, train=splits.train.count, val=splits.val.count, classes=splits.classes,
        image=runs.preprocessing(runs.new_model(runs.arms[0])).size, skipped=skipped,
    )  # fmt: skip

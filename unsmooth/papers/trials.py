"""Tables of trained models: every group is a trial of `compare`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unsmooth.data.splits import open_splits
from unsmooth.errors import UnsmoothError
from unsmooth.papers.catalogue import Curve, Experiment, PublishedGroup
from unsmooth.papers.costs import TIMED, add_speed
from unsmooth.papers.counts import add_counts
from unsmooth.papers.request import RunRequest
from unsmooth.papers.rows import add_measured, published_row, with_printed_rows
from unsmooth.recipes.recipe import load_recipe
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.reproduction import ArmResult, GroupResult, MeasuredCurve
from unsmooth.results.trial import Arm, Difference, SeedSpread, Trial
from unsmooth.spec import ModelSpec
from unsmooth.tasks.model_factory import build
from unsmooth.training.run import train
from unsmooth.trials.compare import compare
from unsmooth.trials.directory import TrialDirectory

COSTS = set(TIMED)


def run_trials(experiment: Experiment, request: RunRequest) -> tuple[list[GroupResult], str]:
    """Run the trial of every group. Returns the groups and a description of the data."""
    groups, data = [], ""
    open_splits(request.images(experiment), root=request.data_dir)  # raises before models are built
    check_start(experiment, request)
    check_groups(experiment, request)
    for group in request.groups(experiment):
        if len(group.models) < 2:
            groups.append(GroupResult(name=group.name, rows=_counted_rows(experiment, group, request.small)))
            continue
        trial = train_group(experiment, group, request)
        data = describe_data(trial)
        rows = with_printed_rows(group, _rows(experiment, group, trial, request.small))
        groups.append(GroupResult(name=group.name, rows=rows))
    return groups, data or "no images: nothing to compare"


def _counted_rows(experiment: Experiment, group: PublishedGroup, small: bool) -> list[ArmResult]:
    """Rows of a group with a single model, which is compared with nothing and therefore not trained."""
    rows = [published_row(group, i, group.spec(arm, small)) for i, arm in enumerate(group.models)]
    for row, arm in zip(rows, group.models, strict=True):
        add_counts(row, experiment, group, arm)
    return with_printed_rows(group, rows)


def check_start(experiment: Experiment, request: RunRequest) -> None:
    """Check that fine-tuning at full scale has weights to start from."""
    if experiment.finetuned and not (request.small or request.pretrained or request.checkpoints):
        raise UnsmoothError(
            f"{experiment.id} fine-tunes trained hosts. Give pretrained (--pretrained) or checkpoints (--checkpoint), "
            "or use small (--small)."
        )


def check_groups(experiment: Experiment, request: RunRequest) -> None:
    """Build every model, so that a mistake in the last one is found before the first one is trained."""
    for group in request.groups(experiment):
        recipe = request.recipe(experiment, group)
        for arm in group.models if len(group.models) > 1 else ():
            own = {} if request.small else arm.overrides
            build(group.spec(arm, request.small), 10, replace(recipe, **own), 0)


def describe_data(trial: Trial) -> str:
    return describe_training(trial.data.name, trial.data.train, trial.recipe["epochs"])


def describe_training(data: str, images: int, epochs: int) -> str:
    return f"{Path(data).name}, {images:,} training images, {epochs} epoch{'s' if epochs != 1 else ''}"


def train_group(experiment: Experiment, group: PublishedGroup, request: RunRequest, vitals: str | None = None) -> Trial:
    """Run the trial of a group. Runs that are done are not repeated."""
    request.on_stage(f"{experiment.id}: {group.name}")
    if vitals is None:
        vitals = ",".join(dict.fromkeys(curve.vital for curve in experiment.curves if curve.vital)) or "none"
    trial = compare(
        group.specs(request.small), request.images(experiment), recipe=request.recipe(experiment, group),
        seeds=request.seeds_of(experiment), out=request.folder(group), jobs=request.jobs, data_dir=request.data_dir,
        workers=request.workers, device=request.device, robustness=experiment.robustness,
        costs=bool(COSTS & set(experiment.measures)), vitals=vitals, pretrained=request.pretrained,
        checkpoint=_start(experiment, group, request), arm_fields=_arm_fields(group, request),
        on_progress=request.on_progress, on_stage=request.on_stage,
        command=request.command,
    )  # fmt: skip
    if len(trial.seeds) == 1:  # no comparison of methods: the page of the experiment shows its figure and claims
        TrialDirectory(request.folder(group)).report.unlink(missing_ok=True)
    for arm, name in zip(trial.arms, group.names(), strict=True):
        arm.name = name
    return trial


def _arm_fields(group: PublishedGroup, request: RunRequest) -> dict[ModelSpec, Mapping[str, Any]]:
    """Recipe fields that the paper changes for single arms. Small runs have one recipe for all."""
    if request.small:
        return {}
    specs = group.specs(small=False)
    return {spec: arm.overrides for spec, arm in zip(specs, group.models, strict=True) if arm.overrides}


def _start(experiment: Experiment, group: PublishedGroup, request: RunRequest) -> Path | None:
    """Weights that every arm starts from. Fine-tuning at small scale trains the plain host first."""
    if request.checkpoints or not experiment.finetuned or request.pretrained:
        return request.checkpoints[0] if request.checkpoints else None
    folder = request.folder(group) / "start"
    request.on_stage(f"training the start of all arms, {group.small}")
    recipe = load_recipe(experiment.small.recipe, {**experiment.small.overrides, **request.overrides})
    train(group.small, request.images(experiment), recipe=recipe, out=folder, data_dir=request.data_dir,
          device=request.device)  # fmt: skip
    return folder / "last"


def _rows(experiment: Experiment, group: PublishedGroup, trial: Trial, small: bool) -> list[ArmResult]:
    rows = []
    for i, (arm, spec) in enumerate(zip(trial.arms, group.specs(small), strict=True)):
        row = published_row(group, i, spec)
        for name in experiment.measures:
            _add_metric(row, name, arm, trial.arms[0])
        add_counts(row, experiment, group, group.models[i])
        curves = {curve.label: _curve(arm, curve) for curve in experiment.curves}
        row.curves = {label: curve for label, curve in curves.items() if curve is not None}
        row.failed = next((run.failed for run in arm.failed_runs), None)
        rows.append(row)
    return rows


def _curve(arm: Arm, curve: Curve) -> MeasuredCurve | None:
    return _by_epoch(arm, curve.metric) if curve.metric else by_block(arm.diagnosed, curve)


def _add_metric(row: ArmResult, name: str, arm: Arm, first: Arm) -> None:
    if name == "top1":
        _add_difference(row, name, arm.top1, arm.difference, _finished(arm.top1))
    elif name in ("top5", "loss"):  # these have no paired interval
        own, base = (x.top5 if name == "top5" else x.loss for x in (arm, first))
        known = arm is not first and own.mean is not None and base.mean is not None
        gain = own.mean - base.mean if known else None  # type: ignore[operator]
        add_measured(row, name, own.mean, sd=own.sd, seeds=_finished(own), gain=gain)
    elif name in ("occlusion", "fgsm"):
        test = next((key for key in arm.robustness if key.startswith(name)), None)
        if test is not None:
            _add_difference(row, name, arm.robustness[test].top1, arm.robustness[test].difference, None)
    elif name in TIMED:
        add_speed(row, name, arm.inference if TIMED[name] == "inference" else arm.training, arm is first)


def _add_difference(
    row: ArmResult, name: str, spread: SeedSpread, difference: Difference | None, seeds: int | None
) -> None:
    """Add an accuracy with its difference to the first arm. The interval needs more than one seed."""
    many = difference is not None and len([seed for seed in difference.by_seed if seed is not None]) > 1
    add_measured(
        row, name, spread.mean, sd=spread.sd, seeds=seeds, gain=difference.mean if difference else None,
        low=difference.low if difference and many else None, high=difference.high if difference and many else None,
    )  # fmt: skip


def _finished(spread: SeedSpread) -> int:
    return sum(run is not None for run in spread.runs)


def by_block(diagnosis: Diagnosis | None, curve: Curve) -> MeasuredCurve | None:
    """The values of a vital by block, with their spread over images."""
    vital = diagnosis.vitals.get(curve.vital) if diagnosis is not None else None
    if vital is None or not vital.parts:
        return None
    part = curve.part or (vital.main if vital.main in vital.parts else next(iter(vital.parts)))
    series = vital.parts.get(part)
    if series is None or any(spread is not None and isinstance(spread.mean, list) for spread in series):
        return None
    mean, sd, low, high = (
        [None if spread is None else getattr(spread, key) for spread in series] for key in ("mean", "sd", "low", "high")
    )
    return MeasuredCurve(by="block", mean=mean, sd=sd, low=low, high=high)


def _by_epoch(arm: Arm, metric: str) -> MeasuredCurve | None:
    """A metric by epoch: mean and standard deviation over seeds."""
    by_run = [
        {line.epoch: line[metric] for line in run.epochs if line.metrics.get(metric) is not None} for run in arm.runs
    ]
    epochs = sorted(set.intersection(*(set(values) for values in by_run))) if by_run else []
    if not epochs:
        return None
    values = np.array([[run[epoch] for epoch in epochs] for run in by_run], dtype=float)
    sd = values.std(0, ddof=1).tolist() if len(values) > 1 else [None] * len(epochs)
    return MeasuredCurve(by="epoch", at=[*epochs], mean=values.mean(0).tolist(), sd=sd)

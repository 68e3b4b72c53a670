"""Tables of trained models: every group is a trial of `unsmooth compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unsmooth.data.splits import open_splits
from unsmooth.errors import UnsmoothError
from unsmooth.papers.catalogue import Curve, Experiment, Group
from unsmooth.papers.costs import TIMED, put_speed
from unsmooth.papers.request import RunRequest
from unsmooth.papers.rows import measured, row_of
from unsmooth.recipes.recipe import load_recipe
from unsmooth.report.reproduction_table import Row
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.tasks.model_factory import build
from unsmooth.training.run import train
from unsmooth.trials.compare import compare

COSTS = {"parameters", "macs", *TIMED}


def run_trials(experiment: Experiment, request: RunRequest) -> tuple[list[Row], str]:
    """The groups with their rows, and the data in words."""
    groups, about = [], ""
    open_splits(request.images(experiment), root=request.data_dir)  # a mistake there is found before models are built
    check_start(experiment, request)
    check_groups(experiment, request)
    for group in request.groups(experiment):
        trial = train_group(experiment, group, request)
        about = about_data(trial)
        groups.append({"name": group.name, "rows": rows_of(experiment, group, trial, request.small)})
    return groups, about


def check_start(experiment: Experiment, request: RunRequest) -> None:
    """Whoever fine-tunes at full scale has something to start from."""
    if experiment.finetuned and not (request.small or request.pretrained or request.checkpoints):
        raise UnsmoothError(f"{experiment.id} fine-tunes trained hosts: give --pretrained or --checkpoint, or --small")


def check_groups(experiment: Experiment, request: RunRequest) -> None:
    """Build every model of every group, so that a mistake in the last one is found before the first one is trained."""
    for group in request.groups(experiment):
        recipe = load_recipe(request.scale(experiment).recipe, request.fields(experiment, group))
        for spec in group.specs(request.small):
            build(spec, 10, recipe, 0)


def about_data(trial: dict[str, Any]) -> str:
    name = Path(trial["data"]["name"]).name
    epochs = trial["recipe"]["epochs"]
    return f"{name}, {trial['data']['train']:,} training images, {epochs} epoch{'s' if epochs != 1 else ''}"


def train_group(experiment: Experiment, group: Group, request: RunRequest, vitals: str | None = None) -> dict[str, Any]:
    """The trial of a group; runs that its folder has already are not repeated."""
    scale = request.scale(experiment)
    request.on_stage(f"{experiment.id}: {group.name}")
    names = group.names()
    if vitals is None:
        vitals = ",".join(dict.fromkeys(curve.vital for curve in experiment.curves if curve.vital))
    trial = compare(
        group.specs(request.small), request.images(experiment), seeds=request.seeds or scale.seeds, recipe=scale.recipe,
        overrides=request.fields(experiment, group), out=request.folder(group), jobs=request.jobs, data_dir=request.data_dir,
        workers=request.workers, device=request.device, robustness=experiment.robustness,
        costs=bool(COSTS & set(experiment.measures)), vitals=vitals, on_progress=request.on_progress, on_stage=request.on_stage,
        pretrained=request.pretrained, checkpoint=_start(experiment, group, request), command=request.command,
    ).data  # fmt: skip
    for arm, name in zip(trial["arms"], names, strict=True):
        arm["name"] = name
    return trial


def _start(experiment: Experiment, group: Group, request: RunRequest) -> Path | None:
    """Weights that every arm starts from. For fine-tuning at small scale, the plain host is trained first."""
    if request.checkpoints or not experiment.finetuned or request.pretrained:
        return request.checkpoints[0] if request.checkpoints else None
    folder = request.folder(group) / "start"
    request.on_stage(f"training {group.small} to start from")
    overrides = {**experiment.small.overrides, **request.overrides}
    train(group.small, request.images(experiment), recipe=experiment.small.recipe, overrides=overrides, out=folder,
          data_dir=request.data_dir, device=request.device)  # fmt: skip
    return folder / "last"


def rows_of(experiment: Experiment, group: Group, trial: dict[str, Any], small: bool) -> list[Row]:
    rows = []
    for at, (arm, spec) in enumerate(zip(trial["arms"], group.specs(small), strict=True)):
        row = row_of(group, at, spec)
        for name in experiment.measures:
            _measure(row, name, arm, at, trial["arms"][0])
        row["curves"] = {curve.label: found for curve in experiment.curves if (found := _curve(arm, curve)) is not None}
        row["failed"] = next((run["failed"] for run in arm["runs"] if run["failed"]), None)
        rows.append(row)
    return rows


def _curve(arm: dict[str, Any], curve: Curve) -> Row | None:
    if curve.metric:
        return _by_epoch(arm, curve.metric)
    return by_block(Diagnosis.from_dict(arm["diagnosis"]), curve) if arm["diagnosis"] else None


def _measure(row: Row, name: str, arm: dict[str, Any], at: int, first: dict[str, Any]) -> None:
    if name in ("top1", "top5", "loss"):
        found = arm[name]
        seeds = sum(run is not None for run in found["runs"])
        if name == "top1":
            _put(row, name, found["mean"], found["sd"], seeds, arm["difference"])
        else:  # of these no paired interval is computed
            known = at and None not in (found["mean"], first[name]["mean"])
            gain = found["mean"] - first[name]["mean"] if known else None
            measured(row, name, found["mean"], sd=found["sd"], seeds=seeds, gain=gain)
    elif name in ("occlusion", "fgsm"):
        test = next((key for key in arm["robustness"] if key.startswith(name)), None)
        if test is not None:
            found = arm["robustness"][test]
            _put(row, name, found["top1"]["mean"], found["top1"]["sd"], None, found["difference"])
    elif name == "parameters":
        measured(row, name, arm["parameters"])
    elif name == "macs":
        measured(row, name, None if arm["flops"] is None else arm["flops"] / 2)
    elif name in TIMED and arm[TIMED[name]] is not None:
        put_speed(row, name, arm[TIMED[name]], at)


def _put(row: Row, name: str, mean: float | None, sd: float | None, seeds: int | None, d: Row | None) -> None:
    many = d is not None and len([s for s in d["by_seed"] if s is not None]) > 1
    measured(
        row, name, mean, sd=sd, seeds=seeds, gain=d["mean"] if d else None,
        low=d["low"] if d and many else None, high=d["high"] if d and many else None,
    )  # fmt: skip


def by_block(diagnosis: Diagnosis, curve: Curve) -> Row | None:
    """A vital's values by block, with their spread over images."""
    vital = diagnosis.vitals.get(curve.vital)
    if vital is None or not vital.parts:
        return None
    reading = diagnosis[curve.vital]
    if curve.part:
        if curve.part not in vital.parts:
            return None
        reading = reading.part(curve.part)
    if any(isinstance(mean, list) for mean in reading):
        return None
    return {"by": "block", "mean": reading.mean, "sd": reading.sd, "low": reading.low, "high": reading.high}


def _by_epoch(arm: dict[str, Any], metric: str) -> Row | None:
    """A metric by epoch: the mean over seeds and its standard deviation."""
    known = [
        {line["epoch"]: line[metric] for line in run["epochs"] if line.get(metric) is not None} for run in arm["runs"]
    ]
    epochs = sorted(set.intersection(*(set(run) for run in known))) if known else []
    if not epochs:
        return None
    values = np.array([[run[epoch] for epoch in epochs] for run in known], dtype=float)
    sd = values.std(0, ddof=1).tolist() if len(values) > 1 else [None] * len(epochs)
    return {"by": "epoch", "at": epochs, "mean": values.mean(0).tolist(), "sd": sd}

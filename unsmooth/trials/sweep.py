"""Sweeps: every arm is trained with the same values of a recipe field, and keeps the one that is best for it.

Values are compared on training images that are held out of these runs. The validation images of the trial play no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from unsmooth.data.splits import Splits, hold_out
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import Recipe
from unsmooth.results.trial import ArmSweep, SweepRun
from unsmooth.training.observer import OnProgress
from unsmooth.trials.arms import PlannedArm
from unsmooth.trials.runner import Job
from unsmooth.trials.runs import OnStage, TrialRuns
from unsmooth.trials.start_runs import start_runs
from unsmooth.utils.options import describe, read_text_values

HELD_OUT = 0.1  # share of the training images of each class
OPTIONS = {"holdout": HELD_OUT}
BUDGET = ("epochs", "train_images", "val_images", "image_size")  # fields that all arms must share


@dataclass(frozen=True)
class Sweep:
    """Values of one recipe field, and the epochs of the runs that try them; 0: those of the recipe."""

    field: str
    values: tuple[Any, ...]
    epochs: int = 0

    def arm(self, arm: PlannedArm, value: Any) -> PlannedArm:
        """The arm with one of the values."""
        return replace(arm, fields={**arm.fields, self.field: value})

    def tried(self, arm: PlannedArm, value: Any) -> PlannedArm:
        """The arm as it is trained to try a value."""
        tried = self.arm(arm, value)
        return replace(tried, fields={**tried.fields, "epochs": self.epochs}) if self.epochs else tried

    def splits(self, splits: Splits) -> Splits:
        """The images that the runs of the sweep are trained and scored on."""
        return hold_out(splits, HELD_OUT)


def read_sweep(text: str, epochs: int = 0) -> Sweep | None:
    """Read `lr=5e-4,1e-3,2e-3`; None if there is no text."""
    if not text:
        if epochs:
            raise UnsmoothError(
                f"sweep_epochs is set to {epochs}, but there is no sweep. Add one, such as lr=5e-4,1e-3."
            )
        return None
    field, _, listed = text.partition("=")
    texts = [value.strip() for value in listed.split(",") if value.strip()]
    if len(texts) < 2:
        raise UnsmoothError(f"a sweep needs a recipe field and at least two values (got {text!r}). Use lr=5e-4,1e-3.")
    field = field.strip().replace("-", "_")
    values = tuple(read_text_values(Recipe, {field: value}, "recipe")[field] for value in texts)
    kind = next(info.kind for info in describe(Recipe) if info.name == field)
    if kind is tuple or field in BUDGET:
        reason = "has several numbers" if kind is tuple else "is part of the budget that all arms share"
        raise UnsmoothError(f"{field} {reason}, so it cannot be swept. Sweep another field, such as lr.")
    if len(set(values)) < len(values):
        raise UnsmoothError(f"the sweep {text!r} has a value twice. Give each value once.")
    return Sweep(field, values, epochs)


def with_chosen(runs: TrialRuns, sweep: Sweep | None) -> TrialRuns:
    """The runs with the values that a finished sweep chose; unchanged if there is no sweep or it is not complete."""
    done = sweep is not None and all(
        runs.directory.sweep_run(arm, sweep.field, value).done for arm in runs.arms for value in sweep.values
    )
    if sweep is None or not done:
        return runs
    chosen = [_outcome(runs, sweep, arm, {}).chosen for arm in runs.arms]
    return replace(runs, arms=[sweep.arm(arm, value) for arm, value in zip(runs.arms, chosen, strict=True)])


def sweep_jobs(runs: TrialRuns, sweep: Sweep) -> dict[str, Job]:
    """The runs of a sweep that are not done, by folder: the control of other seeds shares those of the first arm."""
    jobs: dict[str, Job] = {}
    for arm in runs.arms:
        for value in sweep.values:
            run = runs.directory.sweep_run(arm, sweep.field, value)
            if not run.done:
                arguments = runs.arguments(sweep.tried(arm, value), 0, run.path)
                name = f"{arm.name}, {sweep.field}={value}"
                jobs.setdefault(str(run.path), Job(name, {**arguments, "options": OPTIONS}))
    return jobs


def run_sweep(
    runs: TrialRuns, sweep: Sweep, on_progress: OnProgress, report_stage: OnStage
) -> tuple[list[PlannedArm], list[ArmSweep]]:
    """Train every arm with every value on seed 0. Returns the arms with their best values, and all accuracies."""
    jobs = sweep_jobs(runs, sweep)
    if jobs:
        report_stage(f"sweep of {sweep.field}: training {len(jobs)} runs")
    failures = start_runs(list(jobs.values()), runs.settings, on_progress)
    by_folder = {folder: failures[job.name] for folder, job in jobs.items() if job.name in failures}
    outcomes = [_outcome(runs, sweep, arm, by_folder) for arm in runs.arms]
    chosen = [
        arm if outcome.chosen is None else sweep.arm(arm, outcome.chosen)
        for arm, outcome in zip(runs.arms, outcomes, strict=True)
    ]
    return chosen, outcomes


def _outcome(runs: TrialRuns, sweep: Sweep, arm: PlannedArm, failures: dict[str, str]) -> ArmSweep:
    directory, tried, images = runs.directory, [], 0
    for value in sweep.values:
        run = directory.sweep_run(arm, sweep.field, value)
        result = run.result()
        images = images if result is None else result.images
        folder = str(run.path.relative_to(directory.path))
        tried.append(SweepRun(value, run.metric("top1"), folder, failures.get(str(run.path))))
    chosen = choose(tried)
    return ArmSweep(sweep.field, images, tried, chosen, at_edge(chosen, sweep.values), sweep.epochs or None)


def choose(runs: Sequence[SweepRun]) -> Any:
    """The value with the highest accuracy, the first one of equals; None if every run failed."""
    known = [run for run in runs if run.top1 is not None]
    return max(known, key=lambda run: run.top1 or 0.0).value if known else None


def at_edge(chosen: Any, values: Sequence[Any]) -> bool:
    """Whether the chosen value is the lowest or highest number of the sweep."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return len(numbers) == len(values) and chosen in (min(numbers), max(numbers))

"""The design of a trial as text: its power, its start, its sweep and when it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unsmooth.results.trial import Arm, ArmSweep, Trial


def design(trial: Trial) -> list[str]:
    """What was decided before and during the trial, one text each."""
    texts = [] if trial.power is None else [f"Detectable difference: {trial.power.text}"]
    if trial.start is not None:
        texts.append(f"All arms start from {trial.start}. {_starts(trial)}")
    texts += sweeps(trial)
    control = next((arm.name for arm in trial.arms if arm.control == "parameters"), "")
    if compared := [f"{a.name} {a.beyond_parameters.text}" for a in trial.arms if a.beyond_parameters is not None]:
        texts.append(f"Compared with {control}: {'; '.join(compared)}.")
    if trial.stopping is not None:
        texts.append(trial.stopping.text)
    return texts


def interval_level(trial: Trial) -> str:
    """Confidence level of the intervals, with a note if they are corrected for repeated analyses."""
    if trial.stopping is None:
        return f"{100 * trial.confidence:g} %"
    return f"{100 * trial.stopping.confidence:.2f} % ({100 * trial.confidence:g} % over all interim analyses)"


def untuned_fields(arm: Arm) -> dict[str, Any]:
    """Recipe fields of an arm alone, except one that a sweep chose with the same effort for all arms."""
    return {name: value for name, value in arm.recipe.items() if arm.sweep is None or name != arm.sweep.field}


def sweeps(trial: Trial) -> list[str]:
    """The values that a sweep chose for each arm, with the accuracies."""
    tuned = [(arm.name, arm.sweep) for arm in trial.arms if arm.sweep is not None]
    if not tuned:
        return []
    first = tuned[0][1]
    chosen = "; ".join(f"{name}: {_choice(sweep)}" for name, sweep in tuned)
    edge = " A value at the edge of the sweep is marked: one beyond it may be better." if any(
        sweep.edge for _, sweep in tuned
    ) else ""  # fmt: skip
    return [
        f"Sweep of {first.field} with seed 0, equal for all arms, {_sweep_epochs(first)}chosen on {first.images:,} "
        f"held-out training images. {chosen}.{edge}"
    ]


def _sweep_epochs(sweep: ArmSweep) -> str:
    return "" if sweep.epochs is None else f"{sweep.epochs} epoch{'s' * (sweep.epochs != 1)} per run, "


def _choice(sweep: ArmSweep) -> str:
    tried = ", ".join(
        f"{run.value} {'failed' if run.top1 is None else f'{100 * run.top1:.1f} %'}" for run in sweep.runs
    )
    edge = " (edge)" if sweep.edge else ""
    return f"{'none' if sweep.chosen is None else sweep.chosen}{edge} of {tried}"


def _starts(trial: Trial) -> str:
    known = [(arm.name, arm.start) for arm in trial.arms if arm.start is not None]
    text = "Top-1 before the first step: " + ", ".join(f"{name} {100 * start.top1:.1f} %" for name, start in known)
    inexact = [name for name, start in known if start.inexact]
    return text + (f". Not an exact start: {', '.join(inexact)}." if inexact else "; every remedy starts exactly.")

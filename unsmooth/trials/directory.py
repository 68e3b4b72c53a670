"""The files of a trial and of a prescription.

TRIAL/trial.json              the result
TRIAL/report.html             the report
TRIAL/recipe.toml             the recipe of all runs
TRIAL/power.json              the detectable difference, stated before the first run
TRIAL/start.json              accuracies before the first step, if the arms start from trained weights
TRIAL/sweep/ARM/FIELD=VALUE/  a run directory of `train` on part of the training images, to choose a value
TRIAL/runs/ARM/diagnosis.json the diagnosis of the final model of the first seed
TRIAL/runs/ARM/seedN/         a run directory of `train`
TRIAL/runs/ARM/seedN/tokens.npz  token scores of its final model, with a value per query image

PRESCRIPTION/prescription.json    the result
PRESCRIPTION/report.html          the report
PRESCRIPTION/diagnosis.json       the diagnosis of the model, and .html, its report
PRESCRIPTION/diagnosed/           the run directory of that model, if it was trained
PRESCRIPTION/rungs/N_epochs/ARM/  a run directory of the search
PRESCRIPTION/final/               the trial directory of the final comparison
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unsmooth.training.run_dir import RunDir
from unsmooth.trials.arms import PlannedArm
from unsmooth.utils.files import encode

RUN_PATTERN = "runs/*/seed*"


@dataclass(frozen=True)
class TrialDirectory:
    """Paths of a trial and of its runs."""

    path: Path

    @property
    def result(self) -> Path:
        return self.path / "trial.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def power(self) -> Path:
        return self.path / "power.json"

    @property
    def start(self) -> Path:
        return self.path / "start.json"

    def sweep_run(self, arm: PlannedArm, field: str, value: Any) -> RunDir:
        return RunDir(self.path / "sweep" / arm.slug / re.sub(r"[^A-Za-z0-9.+=_-]+", "_", f"{field}={value}"))

    def foreign(self, recipe: str) -> Path | None:
        """A file that the trial would overwrite although it is not of a trial: there are no runs beside it."""
        if (self.path / "runs").is_dir():
            return None
        files = (path for path in (self.result, self.report, self.recipe) if path.exists())
        return next((path for path in files if path != self.recipe or path.read_bytes() != encode(recipe)), None)

    def arm(self, arm: PlannedArm) -> Path:
        return self.path / "runs" / arm.slug

    def diagnosis(self, arm: PlannedArm) -> Path:
        return self.arm(arm) / (f"diagnosis_seed{arm.first_seed}.json" if arm.first_seed else "diagnosis.json")

    def run_path(self, arm: PlannedArm, seed: int) -> Path:
        return self.arm(arm) / f"seed{arm.first_seed + seed}"

    def tokens(self, arm: PlannedArm, seed: int) -> Path:
        return self.run_path(arm, seed) / "tokens.npz"

    def run(self, arm: PlannedArm, seed: int) -> RunDir:
        return RunDir(self.run_path(arm, seed))


@dataclass(frozen=True)
class PrescriptionDirectory:
    """Paths of a prescription and of its runs."""

    path: Path

    @property
    def result(self) -> Path:
        return self.path / "prescription.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def diagnosis(self) -> Path:
        return self.path / "diagnosis.json"

    @property
    def diagnosed(self) -> RunDir:
        return RunDir(self.path / "diagnosed")

    def rung_run(self, epochs: int, arm: PlannedArm) -> RunDir:
        return RunDir(self.path / "rungs" / f"{epochs}_epochs" / arm.slug)

    @property
    def final(self) -> Path:
        return self.path / "final"

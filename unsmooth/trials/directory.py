"""The files of a trial.

TRIAL/trial.json              the result
TRIAL/report.html             the report
TRIAL/recipe.toml             the recipe of all runs
TRIAL/runs/ARM/diagnosis.json the diagnosis of the final model of the first seed
TRIAL/runs/ARM/seedN/         a run directory of `train`
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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

    def foreign(self, recipe: str) -> Path | None:
        """A file that the trial would overwrite although it is not of a trial: there are no runs beside it."""
        if (self.path / "runs").is_dir():
            return None
        files = (path for path in (self.result, self.report, self.recipe) if path.exists())
        return next((path for path in files if path != self.recipe or path.read_bytes() != encode(recipe)), None)

    def arm(self, arm: PlannedArm) -> Path:
        return self.path / "runs" / arm.slug

    def diagnosis(self, arm: PlannedArm) -> Path:
        return self.arm(arm) / "diagnosis.json"

    def run_path(self, arm: PlannedArm, seed: int) -> Path:
        return self.arm(arm) / f"seed{seed}"

    def run(self, arm: PlannedArm, seed: int) -> RunDir:
        return RunDir(self.run_path(arm, seed))

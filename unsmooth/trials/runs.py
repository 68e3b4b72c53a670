"""The runs of a trial: what each one is trained with, and its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from unsmooth.data.datasets import ImageDataset
from unsmooth.data.splits import Splits
from unsmooth.data.transforms import Preprocessing, preprocessing
from unsmooth.recipes.recipe import Recipe
from unsmooth.surgery.storage import load
from unsmooth.tasks.model_factory import build
from unsmooth.trials.arms import PlannedArm
from unsmooth.trials.directory import TrialDirectory
from unsmooth.trials.runner import Job
from unsmooth.trials.settings import CompareSettings
from unsmooth.trials.statistics import Array
from unsmooth.utils.options import merge_options

OnStage = Callable[[str], None]
Correct = dict[int, bool]  # whether the prediction is correct, by position of the image in the data


@dataclass(frozen=True)
class TrialRuns:
    """The runs of a trial and the data to train and measure them on."""

    arms: Sequence[PlannedArm]
    directory: TrialDirectory
    settings: CompareSettings
    recipe: Recipe
    splits: Splits
    data: str | Path
    device: str = "cpu"
    command: str = ""

    @property
    def seeds(self) -> range:
        return range(self.settings.seeds)

    @property
    def compared(self) -> list[PlannedArm]:
        """Arms whose difference from the first one is a claim: all except the first and the control of other seeds."""
        return [arm for arm in self.arms[1:] if arm.control != "seeds"]

    def with_seeds(self, seeds: int) -> TrialRuns:
        """The same trial with the first seeds only."""
        return replace(self, settings=replace(self.settings, seeds=seeds))

    def recipe_of(self, arm: PlannedArm) -> Recipe:
        """The recipe of an arm: that of the trial, with the arm's own fields."""
        return merge_options(Recipe, self.recipe, arm.fields, "recipe")

    def arguments(self, arm: PlannedArm, seed: int, out: Path) -> dict[str, Any]:
        """Keyword arguments of `train` for a run of an arm."""
        settings = self.settings
        return {
            "spec": arm.spec, "seed": seed, "out": out, "recipe": self.recipe_of(arm), "data": self.data,
            "val_data": settings.val_data, "data_dir": settings.data_dir, "workers": settings.workers,
            "strict_data": settings.strict_data, "checkpoint": settings.checkpoint,
            "pretrained": settings.pretrained, "command": self.command,
        }  # fmt: skip

    def jobs(self, seeds: Sequence[int]) -> list[Job]:
        """The runs of some seeds that are not done."""
        return [
            Job(arm.run_name(seed), self.arguments(arm, arm.first_seed + seed, self.directory.run_path(arm, seed)))
            for seed in seeds
            for arm in self.arms
            if not self.directory.run(arm, seed).done
        ]

    def reopen_unscored(self, report_stage: OnStage) -> None:
        """Mark runs whose scores cannot be read as not done, so that their last validation is repeated."""
        for arm in self.arms:
            for seed in self.seeds:
                run = self.directory.run(arm, seed)
                if run.done and (reason := _why_unreadable(run.scores)):
                    report_stage(f"validating {arm.run_name(seed)} again: {reason}")
                    run.scores.unlink(missing_ok=True)
                    run.result_file.unlink()

    def correct(self, arm: PlannedArm) -> list[Correct | None]:
        """Which validation images the final model of each seed classifies correctly; None if a run is not done."""
        return [_read_correct(self.directory.run(arm, seed).scores) for seed in self.seeds]

    def model(self, arm: PlannedArm, seed: int) -> nn.Module | None:
        """The final model of a run, or None if the run is not done or only its scores were kept."""
        run = self.directory.run(arm, seed)
        return load(run.last).eval().to(self.device) if run.done and run.last.exists() else None

    def new_model(self, arm: PlannedArm) -> nn.Module:
        """A model of an arm before training, for what does not depend on the weights."""
        return build(arm.spec, self.splits.classes, self.recipe_of(arm), arm.first_seed).eval().to(self.device)

    def first_model(self, arm: PlannedArm) -> nn.Module | None:
        """The final model of the first seed that has one."""
        models = (self.model(arm, seed) for seed in self.seeds)
        return next((model for model in models if model is not None), None)

    def preprocessing(self, model: nn.Module) -> Preprocessing:
        return preprocessing(model, self.recipe.image_size)

    def validation_images(self, model: nn.Module) -> ImageDataset:
        """The validation images, prepared for a model."""
        prepare = self.preprocessing(model)
        return ImageDataset(self.splits.val, prepare.eval_transform(), prepare.size[0], self.settings.strict_data)


def paired_arrays(own: Sequence[Correct | None], base: Sequence[Correct | None]) -> tuple[Array, Array] | None:
    """Two arms as arrays (seeds, images): the seeds that both finished, on the images that all these runs scored."""
    complete = [(a, b) for a, b in zip(own, base, strict=True) if a is not None and b is not None]
    if not complete:
        return None
    common = sorted(set.intersection(*(set(run) for pair in complete for run in pair)))
    one, other = (np.array([[run[place] for place in common] for run in side]) for side in zip(*complete, strict=True))
    return one, other


def _read_correct(path: Path) -> Correct | None:
    if not path.exists():
        return None
    with np.load(path) as file:
        return dict(zip(file["places"].tolist(), file["correct"].tolist(), strict=True))


def _why_unreadable(path: Path) -> str:
    try:
        return f"{path} is missing" if _read_correct(path) is None else ""
    except Exception as error:  # zip and header errors have no common base class
        return f"{path} cannot be read ({type(error).__name__})"

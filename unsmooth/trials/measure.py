"""Measurements of trained arms: accuracy, differences, diagnosis, robustness and cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as copy_with

import numpy as np
from torch import nn

from unsmooth.data.batches import evaluation_batches
from unsmooth.data.datasets import ImageDataset, sample_batch
from unsmooth.data.splits import Splits
from unsmooth.data.transforms import Preprocessing, preprocessing
from unsmooth.diagnosis import registry
from unsmooth.diagnosis.diagnose import diagnose
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.cost import flops, parameters, throughput
from unsmooth.evaluation.evaluate import image_changes
from unsmooth.recipes.recipe import Recipe
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.trial import Arm, Difference, RobustnessScore, Run, Speed, Spread
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.storage import load
from unsmooth.tasks.classification.scores import score_each
from unsmooth.training.run_dir import RunDir
from unsmooth.trials.arms import PlannedArm
from unsmooth.trials.directory import TrialDirectory
from unsmooth.trials.settings import CompareSettings
from unsmooth.trials.statistics import paired_difference
from unsmooth.utils.options import merge_options

DIAGNOSED = 64  # validation images per diagnosis
BATCH = 32
ROUNDS = 5  # interleaved timing rounds
OCCLUSION = (0.25, 0.5)
FGSM = (1.0,)

OnStage = Callable[[str], None]
Correct = dict[int, bool]  # whether the prediction is correct, by position of the image in the data


@dataclass(frozen=True)
class TrialRuns:
    """The runs of a trial, finished or failed, and the data to measure them on."""

    arms: Sequence[PlannedArm]
    directory: TrialDirectory
    settings: CompareSettings
    recipe: Recipe
    splits: Splits
    device: str = "cpu"

    @property
    def seeds(self) -> range:
        return range(self.settings.seeds)

    def recipe_of(self, arm: PlannedArm) -> Recipe:
        """The recipe of an arm: that of the trial, with the arm's own fields."""
        return merge_options(Recipe, self.recipe, arm.fields, "recipe")

    def model(self, arm: PlannedArm, seed: int) -> nn.Module | None:
        """The final model of a run, or None if the run is not done."""
        run = self.directory.run(arm, seed)
        return load(run.last).eval().to(self.device) if run.done else None

    def first_model(self, arm: PlannedArm) -> nn.Module | None:
        """The final model of the first seed that is done."""
        models = (self.model(arm, seed) for seed in self.seeds)
        return next((model for model in models if model is not None), None)

    def preprocessing(self, model: nn.Module) -> Preprocessing:
        return preprocessing(model, self.recipe.image_size)

    def validation_images(self, model: nn.Module) -> ImageDataset:
        """The validation images, prepared for a model."""
        prepare = self.preprocessing(model)
        return ImageDataset(self.splits.val, prepare.eval_transform(), prepare.size[0], self.settings.strict_data)


def read_arm(arm: PlannedArm, runs: TrialRuns, failures: dict[str, str]) -> Arm:
    """The result of an arm's runs. Differences, diagnosis, robustness and cost are filled in later."""
    directory = runs.directory
    results = [_read_run(arm, seed, runs, failures.get(arm.run_name(seed))) for seed in runs.seeds]
    return Arm(
        name=arm.name, spec=str(arm.spec), folder=str(directory.arm(arm).relative_to(directory.path)),
        parameters=None, flops=None, training=None, inference=None,
        top1=_spread([run.top1 for run in results]), top5=_spread([run.top5 for run in results]),
        loss=_spread([run.loss for run in results]),
        difference=None, robustness={}, runs=results, diagnosis=None, recipe=dict(arm.fields),
    )  # fmt: skip


def _read_run(arm: PlannedArm, seed: int, runs: TrialRuns, failed: str | None) -> Run:
    run = runs.directory.run(arm, seed)
    result = run.result() or {}
    return Run(
        seed=seed, folder=str(run.path.relative_to(runs.directory.path)), top1=result.get("top1"),
        top5=result.get("top5"), loss=result.get("loss"), seconds=result.get("seconds"), failed=failed,
        epochs=run.metrics(),
    )  # fmt: skip


def measure_differences(arms: Sequence[Arm], runs: TrialRuns) -> None:
    """Paired differences in accuracy from the first arm."""
    directory = runs.directory
    correct = [[_read_correct(directory.run(arm, seed)) for seed in runs.seeds] for arm in runs.arms]
    for arm, own in zip(arms[1:], correct[1:], strict=True):
        arm.difference = _difference(own, correct[0], runs.settings.confidence)


def diagnose_arms(arms: Sequence[Arm], runs: TrialRuns, report_stage: OnStage) -> None:
    """Diagnose the final model of each arm. Diagnoses are stored in the trial directory and reused."""
    keys = {vital.key for vital in registry.select(runs.settings.vitals)}
    for arm, planned in zip(arms, runs.arms, strict=True):
        path = runs.directory.diagnosis(planned)
        if path.exists() and keys <= set((stored := Diagnosis.from_json(path)).keys()):
            arm.diagnosis = stored
            continue
        model = runs.first_model(planned)
        if model is None:
            continue
        try:
            anatomy_of(model)
        except UnsmoothError as reason:  # vitals need a host with known blocks
            report_stage(f"{arm.name} is not diagnosed: {reason}")
            continue
        report_stage(f"diagnosing {arm.name}")
        batch = sample_batch(runs.validation_images(model), DIAGNOSED)
        arm.diagnosis = diagnosis = diagnose(model, [(batch.images, batch.labels)], runs.settings.vitals)
        diagnosis.images.source = runs.splits.val.name
        diagnosis.to_json(path)


def measure_robustness(arms: Sequence[Arm], runs: TrialRuns, report_stage: OnStage) -> None:
    """Accuracy of every run on occluded and attacked validation images."""
    correct: dict[str, list[list[Correct | None]]] = {}  # test → arm → seed
    for i, arm in enumerate(runs.arms):
        for seed in runs.seeds:
            model = runs.model(arm, seed)
            if model is None:
                continue
            report_stage(f"robustness of {arm.run_name(seed)}")
            batches = evaluation_batches(runs.validation_images(model), BATCH, runs.settings.workers)
            changes = image_changes(model, runs.preprocessing(model), OCCLUSION, FGSM)
            for test, scores in score_each(model, batches, changes).items():
                by_arm = correct.setdefault(test, [[None for _ in runs.seeds] for _ in runs.arms])
                by_arm[i][seed] = dict(zip(scores.indices.tolist(), scores.correct.tolist(), strict=True))
    for test, by_arm in correct.items():
        for i, (result, own) in enumerate(zip(arms, by_arm, strict=True)):
            top1 = [None if run is None else float(np.mean(list(run.values()))) for run in own]
            difference = _difference(own, by_arm[0], runs.settings.confidence) if i else None
            result.robustness[test] = RobustnessScore(_spread(top1), difference)


def measure_costs(arms: Sequence[Arm], runs: TrialRuns, report_stage: OnStage) -> None:
    """Parameters, operations and throughput. All arms are timed in this process, in interleaved rounds."""
    report_stage("timing")
    final = {arm.name: runs.first_model(arm) for arm in runs.arms}
    models = {name: model for name, model in final.items() if model is not None}
    if not models:
        return
    size = runs.preprocessing(next(iter(models.values()))).size if runs.recipe.image_size else None
    inference, training = (
        throughput(models, BATCH, ROUNDS, training=mode, amp=runs.recipe.amp, size=size) for mode in (False, True)
    )
    for arm in arms:
        if arm.name in models:
            arm.parameters, arm.flops = parameters(models[arm.name]), flops(models[arm.name], size)
            arm.inference, arm.training = (
                Speed(by_name[arm.name].images_per_second, by_name[arm.name].ratio) for by_name in (inference, training)
            )


def _spread(values: Sequence[float | None]) -> Spread:
    known = [value for value in values if value is not None]
    return Spread(
        mean=float(np.mean(known)) if known else None,
        sd=float(np.std(known, ddof=1)) if len(known) > 1 else None,
        runs=list(values),
    )


def _difference(own: Sequence[Correct | None], base: Sequence[Correct | None], confidence: float) -> Difference | None:
    """Difference over the seeds that both arms finished, on the images that all these runs scored."""
    pairs = list(zip(own, base, strict=True))
    complete = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not complete:
        return None
    common = sorted(set.intersection(*(set(run) for pair in complete for run in pair)))
    arrays = [np.array([[run[place] for place in common] for run in side]) for side in zip(*complete, strict=True)]
    difference = paired_difference(arrays[0], arrays[1], confidence)
    measured = iter(difference.by_seed)
    by_seed = [None if a is None or b is None else next(measured) for a, b in pairs]
    return copy_with(difference, by_seed=by_seed)


def reopen_without_scores(run: RunDir) -> str:
    """Mark a run as not done if its scores cannot be read, so that its last validation is repeated; returns why."""
    if not run.done:
        return ""
    try:
        reason = "" if _read_correct(run) is not None else f"{run.scores} is missing"
    except Exception as error:  # zip and header errors have no common base class
        reason = f"{run.scores} cannot be read ({type(error).__name__})"
    if reason:
        run.result_file.unlink()
    return reason


def _read_correct(run: RunDir) -> Correct | None:
    """Which validation images the final model of a run classifies correctly."""
    path = run.scores
    if not path.exists():
        return None
    with np.load(path) as file:
        return dict(zip(file["places"].tolist(), file["correct"].tolist(), strict=True))

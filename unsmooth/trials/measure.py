"""Measurements of trained arms: accuracy, differences, diagnosis, robustness and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as copy_with

import numpy as np

from unsmooth.data.batches import evaluation_batches
from unsmooth.data.datasets import sample_batch
from unsmooth.diagnosis import registry
from unsmooth.diagnosis.diagnose import diagnose
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.cost import flops, parameters, throughput
from unsmooth.evaluation.evaluate import image_changes
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.trial import Arm, Difference, RobustnessScore, Run, Speed, Spread
from unsmooth.surgery.plan import anatomy_of
from unsmooth.tasks.classification.scores import score_each
from unsmooth.trials.arms import PlannedArm
from unsmooth.trials.runs import Correct, OnStage, TrialRuns, paired_arrays
from unsmooth.trials.sequential import interim_confidence, share
from unsmooth.trials.statistics import holm, paired_difference

DIAGNOSED = 64  # validation images per diagnosis
BATCH = 32
ROUNDS = 5  # interleaved timing rounds
OCCLUSION = (0.25, 0.5)
FGSM = (1.0,)


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
        control=arm.control,
    )  # fmt: skip


def _read_run(arm: PlannedArm, seed: int, runs: TrialRuns, failed: str | None) -> Run:
    run = runs.directory.run(arm, seed)
    result = run.result() or {}
    return Run(
        seed=arm.first_seed + seed, folder=str(run.path.relative_to(runs.directory.path)), top1=result.get("top1"),
        top5=result.get("top5"), loss=result.get("loss"), seconds=result.get("seconds"), failed=failed,
        epochs=run.metrics(),
    )  # fmt: skip


def measure_differences(arms: Sequence[Arm], runs: TrialRuns, planned: int) -> None:
    """Fill in the paired differences from the first arm, and from the control of parameters."""
    for arm, difference in zip(arms[1:], differences(runs, planned), strict=True):
        arm.difference = difference
    control = next((arm for arm in runs.arms if arm.control == "parameters"), None)
    if control is None:
        return
    base, level = runs.correct(control), confidence_of(runs, planned)
    for arm, own in zip(arms[1:], runs.arms[1:], strict=True):
        if own.control is None:
            arm.beyond_parameters = _difference(runs.correct(own), base, level)


def confidence_of(runs: TrialRuns, planned: int) -> float:
    """Confidence level of the intervals: that of the last interim analysis if the trial is sequential."""
    level = runs.settings.confidence
    return level if runs.settings.until is None else interim_confidence(level, len(runs.seeds), planned)


def differences(runs: TrialRuns, planned: int) -> list[Difference | None]:
    """Paired differences of all arms from the first one, corrected for repeated analyses and for the number of arms.

    Args:
        runs: The trial with the seeds that are done.
        planned: Maximum number of seeds.
    """
    base, level = runs.correct(runs.arms[0]), confidence_of(runs, planned)
    measured = [_difference(runs.correct(arm), base, level) for arm in runs.arms[1:]]
    if runs.settings.until is not None:  # p at the overall level: that of the analysis divided by its share
        part = share(len(runs.seeds), planned)
        measured = [None if d is None or d.p is None else copy_with(d, p=min(1.0, d.p / part)) for d in measured]
    claims = [i for i, arm in enumerate(runs.arms[1:]) if arm in runs.compared and measured[i] is not None]
    if len(claims) > 1:
        corrected = holm([p for i in claims if (d := measured[i]) is not None and (p := d.p) is not None])
        for i, p in zip(claims, corrected, strict=True):
            d = measured[i]
            assert d is not None
            measured[i] = copy_with(d, p_holm=p, survives=d.shown and p <= 1 - runs.settings.confidence)
    return measured


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
        arm.diagnosis = diagnosis = diagnose(
            model, [(batch.images, batch.labels)], runs.settings.vitals, progress=False
        )
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
    models = {arm.name: runs.new_model(arm) for arm in runs.arms}
    size = runs.preprocessing(next(iter(models.values()))).size if runs.recipe.image_size else None
    inference, training = (
        throughput(models, BATCH, ROUNDS, training=mode, amp=runs.recipe.amp, size=size) for mode in (False, True)
    )
    for arm in arms:
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
    arrays = paired_arrays(own, base)
    if arrays is None:
        return None
    difference = paired_difference(*arrays, confidence)
    measured = iter(difference.by_seed)
    by_seed = [None if a is None or b is None else next(measured) for a, b in zip(own, base, strict=True)]
    return copy_with(difference, by_seed=by_seed)

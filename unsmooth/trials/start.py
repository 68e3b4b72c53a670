"""Retrofit trials: all arms start from one trained host. Their accuracy before the first step is part of the result."""

from __future__ import annotations

import json
from typing import Any

from unsmooth import remedies
from unsmooth.data.batches import evaluation_batches
from unsmooth.hosts.build import PRETRAINED
from unsmooth.results.trial import Start
from unsmooth.spec import ModelSpec
from unsmooth.tasks.classification.scores import score
from unsmooth.tasks.model_factory import build
from unsmooth.trials.arms import PlannedArm
from unsmooth.trials.runs import OnStage, TrialRuns
from unsmooth.utils.files import write

BATCH = 64


def start_of(runs: TrialRuns) -> str | None:
    """Name of the weights that the arms start from; None if the first arm starts from random weights."""
    if runs.settings.checkpoint is not None:
        return str(runs.settings.checkpoint)
    return "pretrained weights" if _pretrained(runs, runs.arms[0].spec) else None


def measure_starts(runs: TrialRuns, report_stage: OnStage) -> list[Start | None]:
    """Accuracy of each arm before the first step; None for random weights. Measured values are stored and reused."""
    return [_start(arm, runs, report_stage) if _trained(runs, arm) else None for arm in runs.arms]


def inexact_remedies(spec: ModelSpec) -> list[str]:
    """Remedies of a spec that change the outputs of a trained host when they are applied."""
    return [str(remedy) for remedy in spec.remedies if not remedies.get(remedy.name).exact(remedies.options_of(remedy))]


def _trained(runs: TrialRuns, arm: PlannedArm) -> bool:
    return runs.settings.checkpoint is not None or _pretrained(runs, arm.spec)


def _pretrained(runs: TrialRuns, spec: ModelSpec) -> bool:
    return runs.settings.pretrained or bool(spec.known_host.options.get(PRETRAINED, False))


def _start(arm: PlannedArm, runs: TrialRuns, report_stage: OnStage) -> Start:
    settings, splits, path = runs.settings, runs.splits, runs.directory.start
    key = f"{arm.spec}, seed {arm.first_seed}"
    origin = {"checkpoint": str(settings.checkpoint), "images": splits.val.count}
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = stored.get(key, {})
    if {name: known.get(name) for name in origin} != origin:
        report_stage(f"accuracy of {arm.name} before the first step")
        model = build(
            arm.spec, splits.classes, runs.recipe_of(arm), arm.first_seed, settings.checkpoint, settings.pretrained
        ).to(runs.device)
        batches = evaluation_batches(runs.validation_images(model), BATCH, settings.workers)
        known = {**origin, "top1": score(model, batches, amp=runs.recipe.amp).top1}
        write(path, (json.dumps({**stored, key: known}, indent=1) + "\n").encode())
    return Start(known["top1"], inexact_remedies(arm.spec))

"""What is measured of trained arms: accuracy with its spread, differences, vitals, robustness and cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from unsmooth.data.batches import evaluation_batches
from unsmooth.data.pictures import ImageDataset, sample_batch
from unsmooth.data.splits import Splits
from unsmooth.data.transforms import Preprocessing, preprocessing
from unsmooth.diagnosis import registry
from unsmooth.diagnosis.diagnose import diagnose
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.cost import flops, parameters, throughput
from unsmooth.evaluation.robustness import fgsm, occlude
from unsmooth.recipes.recipe import Recipe
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.storage import load
from unsmooth.tasks.classification.scores import SCORES, Change, score_each
from unsmooth.training.run_dir import RunFolder
from unsmooth.trials.arms import Arm
from unsmooth.trials.statistics import paired_difference

DIAGNOSED = 64  # validation images for the diagnosis of each arm
BATCH = 32
ROUNDS = 5  # of timing all arms in turn
OCCLUDED = (0.25, 0.5)
EPSILONS = (1.0,)
DIAGNOSIS = "diagnosis.json"

Row = dict[str, Any]  # an arm, as it stands in the JSON of a trial
Stage = Callable[[str], None]
Right = dict[int, bool]  # whether an image is got right, by its place in the data


@dataclass(frozen=True)
class Trained:
    """The runs of a trial, done or failed, and the data that they are measured on."""

    arms: Sequence[Arm]
    folder: Path
    seeds: int
    splits: Splits
    recipe: Recipe
    confidence: float
    device: str = "cpu"
    workers: int = 0
    strict_data: bool = False

    def run(self, arm: Arm, seed: int) -> RunFolder:
        return RunFolder(arm.folder(self.folder, seed))

    def model(self, arm: Arm, seed: int) -> nn.Module | None:
        """The final model of a run, if it was done."""
        run = self.run(arm, seed)
        return load(run.path / "last").eval().to(self.device) if run.done else None

    def first_model(self, arm: Arm) -> nn.Module | None:
        """The final model of the first seed that was done."""
        found = (self.model(arm, seed) for seed in range(self.seeds))
        return next((model for model in found if model is not None), None)

    def pictures(self, model: nn.Module) -> tuple[ImageDataset, Preprocessing]:
        """The validation images as a model wants them."""
        wanted = preprocessing(model, self.recipe.image_size)
        return ImageDataset(self.splits.val, wanted.evaluation(), wanted.size[0], self.strict_data), wanted


def describe(arm: Arm, trained: Trained, failed: dict[str, str]) -> Row:
    """An arm's runs, with what they cost and found; the rest is measured later."""
    runs: list[Row] = []
    for seed in range(trained.seeds):
        run = trained.run(arm, seed)
        result = run.result() or {}
        runs.append({
            "seed": seed, "folder": str(run.path.relative_to(trained.folder)),
            **{key: result.get(key) for key in ("top1", "top5", "loss", "seconds")},
            "failed": failed.get(arm.run_name(seed)), "epochs": run.metrics(),
        })  # fmt: skip
    return {
        "name": arm.name, "spec": arm.spec, "folder": str(Path(runs[0]["folder"]).parent),
        "parameters": None, "flops": None, "training": None, "inference": None,
        **{key: _spread([run[key] for run in runs]) for key in ("top1", "top5", "loss")},
        "difference": None, "robustness": {}, "runs": runs, "diagnosis": None,
    }  # fmt: skip


def measure_differences(rows: Sequence[Row], trained: Trained) -> None:
    right = [[_right(trained.run(arm, seed)) for seed in range(trained.seeds)] for arm in trained.arms]
    for row, ours in zip(rows[1:], right[1:], strict=True):
        row["difference"] = _difference(ours, right[0], trained.confidence)


def diagnose_arms(rows: Sequence[Row], trained: Trained, vitals: str, say: Stage) -> None:
    """Diagnose the final model of each arm, and keep what was found beside its runs."""
    for row, arm in zip(rows, trained.arms, strict=True):
        kept = trained.folder / row["folder"] / DIAGNOSIS
        wanted = {vital.key for vital in registry.select(vitals)}
        if kept.exists() and wanted <= set((old := Diagnosis.from_json(kept)).keys()):
            row["diagnosis"] = old.to_dict()
            continue
        model = trained.first_model(arm)
        if model is None:
            continue
        try:
            anatomy_of(model)
        except UnsmoothError as reason:  # a host without blocks that we know has no vitals
            say(f"{arm.name} is not diagnosed: {reason}")
            continue
        say(f"diagnosing {arm.name}")
        few = sample_batch(trained.pictures(model)[0], DIAGNOSED)
        found = diagnose(model, [(few.images, few.labels)], vitals)
        found.images.source = trained.splits.val.name
        found.to_json(kept)
        row["diagnosis"] = found.to_dict()


def measure_robustness(rows: Sequence[Row], trained: Trained, say: Stage) -> None:
    """Accuracy on occluded and attacked validation images, of every run."""
    found: dict[str, list[list[Right | None]]] = {}
    for place, arm in enumerate(trained.arms):
        for seed in range(trained.seeds):
            model = trained.model(arm, seed)
            if model is None:
                continue
            say(f"robustness of {arm.run_name(seed)}")
            pictures, wanted = trained.pictures(model)
            scored = score_each(model, evaluation_batches(pictures, BATCH, trained.workers), _changes(model, wanted))
            for test, scores in scored.items():
                by_arm = found.setdefault(test, [[None] * trained.seeds for _ in trained.arms])
                by_arm[place][seed] = dict(zip(scores.places.tolist(), scores.correct.tolist(), strict=True))
    for test, right in found.items():
        for row, runs in zip(rows, right, strict=True):
            top1 = [None if run is None else float(np.mean(list(run.values()))) for run in runs]
            difference = None if row is rows[0] else _difference(runs, right[0], trained.confidence)
            row["robustness"][test] = {"top1": _spread(top1), "difference": difference}


def measure_costs(rows: Sequence[Row], trained: Trained, say: Stage) -> None:
    """Parameters, operations and throughput; all arms are timed in turn in this process."""
    say("timing")
    known = {arm.name: trained.first_model(arm) for arm in trained.arms}
    models = {name: model for name, model in known.items() if model is not None}
    if not models:
        return
    side = trained.recipe.image_size
    size = trained.pictures(next(iter(models.values())))[1].size if side else None
    timed = {
        kind: throughput(models, BATCH, ROUNDS, training=kind == "training", amp=trained.recipe.amp, size=size)
        for kind in ("inference", "training")
    }
    for row in rows:
        if row["name"] in models:
            row["parameters"] = parameters(models[row["name"]])
            row["flops"] = flops(models[row["name"]], size)
            for kind, found in timed.items():
                row[kind] = {key: found[row["name"]][key] for key in ("images_per_second", "ratio")}


def _spread(values: Sequence[float | None]) -> Row:
    known = [value for value in values if value is not None]
    return {
        "mean": float(np.mean(known)) if known else None,
        "sd": float(np.std(known, ddof=1)) if len(known) > 1 else None,
        "runs": list(values),
    }


def _difference(ours: Sequence[Right | None], base: Sequence[Right | None], confidence: float) -> Row | None:
    """Of the seeds that both arms finished, on the images that both saw."""
    pairs = list(zip(ours, base, strict=True))
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not both:
        return None
    common = sorted(set.intersection(*(set(places) for pair in both for places in pair)))
    arrays = [np.array([[run[place] for place in common] for run in side]) for side in zip(*both, strict=True)]
    found = paired_difference(arrays[0], arrays[1], confidence).to_json()
    known = iter(found["by_seed"])
    return {**found, "by_seed": [None if a is None or b is None else next(known) for a, b in pairs]}


def _right(run: RunFolder) -> Right | None:
    """Which validation images the last model of a run gets right."""
    if not (run.path / SCORES).exists():
        return None
    with np.load(run.path / SCORES) as file:
        return dict(zip(file["places"].tolist(), file["correct"].tolist(), strict=True))


def _changes(model: nn.Module, wanted: Preprocessing) -> dict[str, Change]:
    """Ways to make an image harder, by name."""

    def hole(share: float) -> Change:
        return lambda images, labels: occlude(images, share)

    def attack(epsilon: float) -> Change:
        return lambda images, labels: fgsm(model, images, labels, epsilon, wanted.mean, wanted.std)

    holes = {f"occlusion {share:g}": hole(share) for share in OCCLUDED}
    return {**holes, **{f"fgsm {epsilon:g}": attack(epsilon) for epsilon in EPSILONS}}

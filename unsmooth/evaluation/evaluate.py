"""`evaluate`: accuracy of one model with intervals, robustness, cost, and scores of the tokens of each block."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from unsmooth.data.batches import evaluation_batches
from unsmooth.data.datasets import ImageDataset
from unsmooth.data.images import Images, Stream
from unsmooth.data.transforms import Preprocessing, preprocessing
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation import cost, robustness, test_sets
from unsmooth.evaluation.settings import EvaluateSettings
from unsmooth.evaluation.test_sets import TestSet
from unsmooth.evaluation.token_scores import token_scores
from unsmooth.hosts.modes import device_of
from unsmooth.hosts.outputs import classes_of
from unsmooth.results.evaluation import (
    EvaluatedImages,
    EvaluatedModel,
    Evaluation,
    InferenceSpeed,
    ModelCost,
    TestScore,
)
from unsmooth.results.provenance import Provenance, versions
from unsmooth.results.scores import Scores
from unsmooth.surgery.record import applied
from unsmooth.surgery.storage import open_model
from unsmooth.tasks.classification.scores import Change, score_each
from unsmooth.utils.devices import choose_device
from unsmooth.utils.options import merge_options

Progress = Callable[[int, int | None], None]  # images done, total
Place = str | Path
Data = Place | Images | Stream


def evaluate(
    model: nn.Module | Place,
    data: Data | None = None,
    *,
    settings: EvaluateSettings | None = None,
    progress: Progress | None = None,
    command: str = "",
    **fields: Any,
) -> Evaluation:
    """Score a model on validation images and on harder test sets.

    The weights, modes and gradients of the model are not changed.

    Args:
        model: A model, a model spec, or a folder written by `save`.
        data: A data name as for `train`, or open data (`Images`, `Stream`). Its validation split is scored, or all
            images if it has no splits. Default: only the test sets and tokens named in the settings.
        settings: Settings of the evaluation. Default: `EvaluateSettings()`.
        progress: Called with the number of images done and the total.
        command: Command line to record in the result.
        **fields: Fields of `EvaluateSettings`, such as `occlusion`, `fgsm`, `imagenet_a`, `tokens`, `limit` or
            `batch_size`. They replace those of `settings`.

    Returns:
        The scores of each test with 95 % intervals, and the cost of the model.

    Raises:
        UnsmoothError: If a setting is not valid, if there are no images, or if the model and the labels do not match.

    Example:
        >>> import unsmooth
        >>> spec = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, depth=2, num_classes=10)"
        >>> evaluation = unsmooth.evaluate(spec, "digits", limit=20, occlusion=[0.25])
        >>> evaluation.keys()
        ['validation', 'occlusion 0.25']
        >>> evaluation["validation"].images
        20
    """
    settings = merge_options(EvaluateSettings, settings, fields, EvaluateSettings.label)
    _check(settings, data)
    host, name, _ = open_model(model, settings.checkpoint)
    prepare = preprocessing(host, settings.image_size)
    for share in settings.occlusion:
        robustness.hole(*prepare.size[1:], share)
    if settings.device is not None or not isinstance(model, nn.Module):
        host.to(choose_device(settings.device))
    has_tests = data is not None or any(_folders(settings))
    classes = classes_of(host) if has_tests else 0  # tokens are scored without the head
    sets = [test_set.subset(settings.limit) for test_set in _open_test_sets(settings, data, classes)]

    started = time.time()
    total, done = sum(test_set.images.count for test_set in sets), 0

    def advance(images: int) -> None:
        nonlocal done
        done += images
        if progress is not None:
            progress(done, total)

    tokens = None
    if settings.tokens is not None:
        tokens = token_scores(host, settings.tokens, progress=progress, settings=replace(settings, checkpoint=None))

    scores: dict[str, Scores] = {}
    rows: list[TestScore] = []
    for test_set in sets:
        set_scores = _score(host, test_set, prepare, settings, advance)
        scores |= set_scores
        rows += [TestScore(**scored.row(test)) for test, scored in set_scores.items()]
    rows += _mean_row([row for row in rows if row.test.startswith("corrupted/")])

    parameter = next(host.parameters())
    evaluation = Evaluation(
        model=EvaluatedModel(
            name=name, class_name=type(host).__name__, classes=classes,
            remedies=[str(remedy) for remedy in applied(host).remedies],
            checkpoint=None if settings.checkpoint is None else str(settings.checkpoint),
            dtype=str(parameter.dtype).removeprefix("torch."), amp=settings.amp, device=str(parameter.device),
        ),
        images=EvaluatedImages(
            sources={test_set.name: test_set.images.name for test_set in sets}, size=prepare.size,
            mean=list(prepare.mean), std=list(prepare.std), limit=settings.limit,
        ),
        rows=rows,
        skipped={test_set.name: skipped for test_set in sets if (skipped := scores[test_set.name].skipped)},
        cost=_cost(host, name, prepare, settings),
        provenance=Provenance(**versions(), command=command, seconds=round(time.time() - started, 1)),
        tokens=tokens,
        warnings=[f"{test_set.name}: {test_set.warning}" for test_set in sets if test_set.warning],
    )  # fmt: skip
    evaluation.scores = scores
    return evaluation


def _check(settings: EvaluateSettings, data: Data | None) -> None:
    for epsilon in settings.fgsm:
        robustness.check_epsilon(epsilon)
    if (settings.occlusion or settings.fgsm) and data is None:
        raise UnsmoothError("occlusion and FGSM need validation images. Pass them as data (--data).")
    if data is None and settings.tokens is None and not any(_folders(settings)):
        raise UnsmoothError(
            "there is nothing to evaluate on. Pass images as data (--data), a test set such as --imagenet-a, or data "
            "that scores the tokens of each block (--tokens)."
        )


def _folders(settings: EvaluateSettings) -> tuple[Path | None, ...]:
    return (settings.imagenet_v2, settings.imagenet_a, settings.imagenet_r, settings.real, settings.corrupted)


def _open_test_sets(settings: EvaluateSettings, data: Data | None, classes: int) -> list[TestSet]:
    """Open every test set, so that an error in the last one is raised before the first one is scored."""
    validation = None if data is None else test_sets.validation(data, classes, settings.data_dir)
    sets = [] if validation is None else [validation]
    openers = (
        (test_sets.imagenet_v2, settings.imagenet_v2), (test_sets.imagenet_a, settings.imagenet_a),
        (test_sets.imagenet_r, settings.imagenet_r), (test_sets.real, settings.real),
    )  # fmt: skip
    sets += [opener(folder, classes) for opener, folder in openers if folder is not None]
    if settings.corrupted is not None:
        sets += test_sets.corrupted(settings.corrupted, classes, validation)
    return sets


def _score(
    model: nn.Module, test_set: TestSet, prepare: Preprocessing, settings: EvaluateSettings,
    advance: Callable[[int], None],
) -> dict[str, Scores]:  # fmt: skip
    """Scores on a test set by test name; validation images are also occluded and attacked."""
    pictures = ImageDataset(test_set.images, prepare.eval_transform(), prepare.size[0], settings.strict)
    pin = device_of(model).type == "cuda"
    batches = evaluation_batches(pictures, settings.batch_size, settings.workers, pin=pin)
    changes: dict[str, Change | None] = {test_set.name: None}
    if test_set.name == "validation":
        changes |= image_changes(model, prepare, settings.occlusion, settings.fgsm)
    scores = score_each(model, batches, changes, test_set.among, settings.amp, advance)
    if test_set.accepted is not None:
        for scored in scores.values():
            scored.accepted, scored.loss = test_set.accepted, None  # the loss needs a single label
    return scores


def image_changes(
    model: nn.Module, prepare: Preprocessing, occlusion: Sequence[float], fgsm: Sequence[float]
) -> dict[str, Change]:
    """Functions that occlude or attack a batch, by test name: "occlusion 0.25", "fgsm 1"."""

    def occluded(images: Tensor, labels: Tensor, share: float) -> Tensor:
        return robustness.occlude(images, share)

    def attacked(images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
        return robustness.fgsm(model, images, labels, epsilon, prepare.mean, prepare.std)

    return {
        **{f"occlusion {share:g}": partial(occluded, share=share) for share in occlusion},
        **{f"fgsm {epsilon:g}": partial(attacked, epsilon=epsilon) for epsilon in fgsm},
    }


def _mean_row(rows: Sequence[TestScore]) -> list[TestScore]:
    """The mean over corruptions. It has no interval: the tests share their images."""
    if len(rows) < 2:
        return []

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None

    return [
        TestScore(
            test="corrupted, mean", images=sum(row.images for row in rows),
            top1=sum(row.top1 for row in rows) / len(rows), top1_interval=None,
            top5=mean([row.top5 for row in rows]), top5_interval=None, loss=mean([row.loss for row in rows]),
            classes=rows[0].classes, skipped=sum(row.skipped for row in rows), not_finite=0,
        )
    ]  # fmt: skip


def _cost(model: nn.Module, name: str, prepare: Preprocessing, settings: EvaluateSettings) -> ModelCost:
    speed = None
    if settings.throughput:
        timed = cost.throughput({name: model}, settings.batch_size, amp=settings.amp, size=prepare.size)[name]
        speed = InferenceSpeed(timed.images_per_second, timed.quartiles, timed.rounds, settings.batch_size)
    return ModelCost(cost.parameters(model), cost.flops(model, prepare.size), speed)

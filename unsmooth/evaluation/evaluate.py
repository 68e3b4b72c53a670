"""Evaluate: one model on its validation images, on harder ones, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from unsmooth._version import __version__
from unsmooth.data.batches import evaluation_batches
from unsmooth.data.datasets import ImageDataset
from unsmooth.data.images import Images, Stream
from unsmooth.data.transforms import Preprocessing, preprocessing
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation import cost, robustness
from unsmooth.evaluation import test_sets as sources
from unsmooth.evaluation.test_sets import Source
from unsmooth.hosts.modes import check_amp, device_of, resolve_device
from unsmooth.hosts.outputs import classes_of
from unsmooth.results.base import FORMAT
from unsmooth.results.evaluation import Evaluation
from unsmooth.surgery.record import applied
from unsmooth.surgery.storage import open_model
from unsmooth.tasks.classification.scores import Change, Scores, score_each

BATCH = 64

Progress = Callable[[int, int | None], None]  # images done, images in all
Place = str | Path
Data = Place | Images | Stream


def evaluate(
    model: nn.Module | Place,
    data: Data | None = None,
    *,
    checkpoint: Place | None = None,
    data_dir: Place | None = None,
    occlusion: Iterable[float] = (),
    fgsm: Iterable[float] = (),
    imagenet_v2: Place | None = None,
    imagenet_a: Place | None = None,
    imagenet_r: Place | None = None,
    real: Place | None = None,
    corrupted: Place | None = None,
    throughput: bool = False,
    batch_size: int = BATCH,
    workers: int = 0,
    device: str | torch.device | None = None,
    amp: str = "none",
    limit: int | None = None,
    image_size: int = 0,
    strict: bool = False,
    progress: Progress | None = None,
    command: str = "",
) -> Evaluation:
    """Score a model. Its weights, modes and gradients are not changed.

    `model`: a model, a spec, or a folder written by `save`. `data`: a name as for training, of which the validation
    split is taken, or all where there is none; or open data (`Images`, `Stream`). `occlusion`: shares of the
    area, `fgsm`: steps in pixels, both on the validation images. `limit`: images of each test at most, spread over it.
    `image_size` is for a host that takes any. `strict`: a broken image is an error. `progress` is told images done and
    images in all.
    """
    _check_numbers(batch_size, workers, limit)
    check_amp(amp)
    shares, steps = _numbers(occlusion), _numbers(fgsm)
    for epsilon in steps:
        robustness.check_epsilon(epsilon)
    if (shares or steps) and data is None:
        raise UnsmoothError("occlusion and FGSM are tried on the validation images; name them with --data")
    if data is None and not any((imagenet_v2, imagenet_a, imagenet_r, real, corrupted)):
        raise UnsmoothError("there is nothing to evaluate on; name images with --data")
    given = isinstance(model, nn.Module)
    built, name = open_model(model, checkpoint)
    wanted = preprocessing(built, image_size)
    size = wanted.size
    for share in shares:
        robustness.hole(*size[1:], share)
    if device is not None or not given:
        built.to(resolve_device(device))
    classes = classes_of(built)
    found = _sources(classes, data, data_dir, imagenet_v2, imagenet_a, imagenet_r, real, corrupted)
    found = [source.limited(limit) for source in found]

    begun = time.time()
    transform, changes = wanted.eval_transform(), _changes(built, shares, steps, wanted)
    total = sum(source.images.count for source in found)
    done = 0

    def advance(images: int) -> None:
        nonlocal done
        done += images
        if progress is not None:
            progress(done, total)

    scores: dict[str, Scores] = {}
    rows: list[dict[str, Any]] = []
    for source in found:
        pictures = ImageDataset(source.images, transform, size[0], strict)
        batches = evaluation_batches(pictures, batch_size, workers, pin=device_of(built).type == "cuda")
        versions: dict[str, Change | None] = {source.test: None}
        if source.test == "validation":
            versions |= changes
        of_source = score_each(built, batches, versions, source.among, amp, advance)
        for scored in of_source.values():
            if source.accepted is not None:
                scored.accepted, scored.loss = source.accepted, None  # of several right answers there is no loss
        scores |= of_source
        rows += [scored.row(test) for test, scored in of_source.items()]
    rows += _mean_of([row for row in rows if row["test"].startswith("corrupted/")])

    parameter = next(built.parameters())
    speed = None
    if throughput:
        speed = {**cost.throughput({name: built}, batch_size, amp=amp, size=size)[name], "batch_size": batch_size}
        del speed["ratio"]
    return Evaluation(
        {
            "format": FORMAT,
            "kind": "evaluation",
            "model": {
                "name": name, "class": type(built).__name__, "classes": classes,
                "remedies": [str(part) for part in applied(built).remedies],
                "checkpoint": None if checkpoint is None else str(checkpoint),
                "dtype": str(parameter.dtype).removeprefix("torch."), "amp": amp, "device": str(parameter.device),
            },
            "images": {
                "sources": {source.test: source.images.name for source in found}, "size": list(size),
                "mean": list(wanted.mean), "std": list(wanted.std), "limit": limit,
            },
            "rows": rows,
            "skipped": {source.test: s for source in found if (s := scores[source.test].skipped)},
            "cost": {"parameters": cost.parameters(built), "flops": cost.flops(built, size), "throughput": speed},
            "made": {
                "unsmooth": __version__, "torch": torch.__version__, "timm": timm.__version__,
                "command": command, "seconds": round(time.time() - begun, 1),
            },
        },
        scores,
    )  # fmt: skip


def _sources(classes: int, data: Data | None, data_dir: Place | None, v2: Place | None, a: Place | None,
             r: Place | None, real: Place | None, corrupted: Place | None) -> list[Source]:  # fmt: skip
    """Every test's images, so that a mistake in the last one is found before the first one runs."""
    held = None if data is None else sources.validation(data, classes, data_dir)
    found = [] if held is None else [held]
    openers = ((sources.imagenet_v2, v2), (sources.imagenet_a, a), (sources.imagenet_r, r), (sources.real, real))
    found += [opener(folder, classes) for opener, folder in openers if folder is not None]
    return found + ([] if corrupted is None else sources.corrupted(corrupted, classes, held))


def _changes(
    model: nn.Module, shares: list[float], steps: list[float], wanted: Preprocessing
) -> dict[str, Change | None]:
    def hidden(images: Tensor, labels: Tensor, share: float) -> Tensor:
        return robustness.occlude(images, share)

    def attacked(images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
        return robustness.fgsm(model, images, labels, epsilon, wanted.mean, wanted.std)

    return {
        **{f"occlusion {share:g}": partial(hidden, share=share) for share in shares},
        **{f"fgsm {epsilon:g}": partial(attacked, epsilon=epsilon) for epsilon in steps},
    }


def _mean_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over corruptions. They are copies of the same images, so no interval of a share fits it."""
    if len(rows) < 2:
        return []

    def mean(name: str) -> float | None:
        values = [row[name] for row in rows]
        return None if None in values else sum(values) / len(values)

    sums = {name: sum(row[name] for row in rows) for name in ("images", "skipped", "not_finite")}
    return [
        {"test": "corrupted, mean", "images": sums["images"], "top1": mean("top1"), "top1_interval": None,
         "top5": mean("top5"), "top5_interval": None, "loss": mean("loss"), "classes": rows[0]["classes"],
         "skipped": sums["skipped"], "not_finite": 0}
    ]  # fmt: skip


def _numbers(values: Iterable[float]) -> list[float]:
    return list(dict.fromkeys(float(value) for value in values))


def _check_numbers(batch_size: int, workers: int, limit: int | None) -> None:
    for name, value, least in (("batch size", batch_size, 1), ("workers", workers, 0), ("limit", limit, 1)):
        if value is not None and value < least:
            raise UnsmoothError(f"{name} must be at least {least}, not {value}")

"""How well a segmenter does on validation pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unsmooth.data.batches import evaluation_batches
from unsmooth.data.transforms import preprocessing
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.modes import autocast, check_amp, device_of, eval_mode
from unsmooth.tasks.segmentation.items import FullImages, SceneItems
from unsmooth.tasks.segmentation.layout import open_scenes
from unsmooth.tasks.segmentation.model import Segmenter, check_any_size
from unsmooth.tasks.segmentation.options import SegmentationOptions
from unsmooth.tasks.segmentation.predict import at_once, called, sliding
from unsmooth.tasks.segmentation.score import SegmentationScore, merge_scores
from unsmooth.tasks.segmentation.storage import load_segmenter
from unsmooth.tasks.segmentation.views import Evaluation, Normalise
from unsmooth.utils.options import read_texts

Progress = Callable[[int, int], None]  # pictures done, pictures in all


def evaluate_segmentation(
    model: Segmenter | str | Path,
    data: str | Path,
    *,
    split: str = "val",
    limit: int = 0,
    options: dict[str, Any] | None = None,
    workers: int = 0,
    device: str | torch.device | None = None,
    amp: str = "none",
    strict: bool = False,
    progress: Progress | None = None,
) -> SegmentationScore:
    """mIoU and what belongs to it (`miou`, `pixel_accuracy`, `mean_accuracy`, `class_iou`).

    `model`: a segmenter, or a folder that one was saved to. `limit`: so many pictures, spread over all. `options`:
    words of the task that differ from those it was trained with, as mode and short; the classes stay.
    """
    check_amp(amp)
    given = isinstance(model, nn.Module)
    if given and not isinstance(model, Segmenter):
        raise UnsmoothError(f"expected a segmenter, or the folder of one, got {type(model).__name__}")
    built = model if isinstance(model, Segmenter) else load_segmenter(model)
    wanted = _changed(built.options, options or {})
    if split not in ("train", "val") or limit < 0:
        raise UnsmoothError(f"split is train or val and limit 0 or more, not {split!r} and {limit}")
    scenes = open_scenes(data, split).some(limit)
    if device is not None or not given:
        _move(built, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if wanted.mode == "whole":
        check_any_size(built, f"this {type(built.backbone).__name__}")
    batches = evaluation_batches(validation(built, scenes, wanted, strict), 1, workers)
    done = 0

    def told() -> Iterable[FullImages]:
        nonlocal done
        for batch in batches:
            yield batch
            done += 1
            if progress is not None:
                progress(done, scenes.count)

    return merge_scores([score(built, told(), device_of(built), amp, wanted)])


def validation(model: Segmenter, scenes: Any, options: SegmentationOptions, strict: bool) -> SceneItems:
    """Scenes as a segmenter is eval_model on them."""
    wanted = preprocessing(model.backbone, options.window)
    view = Evaluation(options, Normalise(wanted.mean, wanted.std))
    return SceneItems(scenes, view, wanted.size[0], options, training=False, strict=strict)


def score(
    model: Segmenter, batches: Iterable[FullImages], device: torch.device, amp: str, options: SegmentationOptions
) -> SegmentationScore:
    """Count the pixels of some batches; the model's modes and gradients are as before."""
    found = SegmentationScore.none(options.classes)
    with eval_mode(model):
        for batch in batches:
            found.skipped |= batch.skipped
            for picture, labels in zip(batch.pictures, batch.labels, strict=True):
                picture = picture.to(device)
                with autocast(amp, device):
                    if options.mode == "whole":
                        logits = at_once(model, picture, model.multiple)
                    else:
                        logits = sliding(model, picture, options.window)
                found.add(labels.to(device), called(logits, (labels.shape[0], labels.shape[1])))
    return found


def _move(model: Segmenter, device: str | torch.device) -> None:
    try:
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise UnsmoothError(f"the device {device} cannot be used: {str(error).splitlines()[0]}") from error


def _changed(options: SegmentationOptions, given: dict[str, Any]) -> SegmentationOptions:
    for name in given:
        if name in ("classes", "hidden", "auxiliary", "head", "crop"):
            raise UnsmoothError(f"{name} is part of a trained segmenter; its own is {getattr(options, name)}")
    wanted = read_texts(SegmentationOptions, {**options.to_json(), **given}, "segmentation")
    return replace(wanted, short=wanted.short or wanted.crop)

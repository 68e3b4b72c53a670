"""Evaluate a segmenter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unsmooth.data.batches import evaluation_batches
from unsmooth.data.transforms import preprocessing
from unsmooth.errors import UnsmoothError, first_line
from unsmooth.hosts.modes import autocast, device_of, eval_mode
from unsmooth.tasks.segmentation.items import FullImages, SceneItems
from unsmooth.tasks.segmentation.layout import open_scenes
from unsmooth.tasks.segmentation.model import Segmenter, check_any_size
from unsmooth.tasks.segmentation.options import EvaluateSegmentationSettings, SegmentationOptions
from unsmooth.tasks.segmentation.predict import predict_whole, predict_windows, predicted_classes
from unsmooth.tasks.segmentation.score import SegmentationScore, merge_scores
from unsmooth.tasks.segmentation.storage import load_segmenter
from unsmooth.tasks.segmentation.views import EvaluationTransform, Normalise
from unsmooth.utils.devices import choose_device
from unsmooth.utils.options import merge_options, read_texts

Progress = Callable[[int, int], None]  # images done, total images


def evaluate_segmentation(
    model: Segmenter | str | Path,
    data: str | Path,
    *,
    options: dict[str, Any] | None = None,
    settings: EvaluateSegmentationSettings | None = None,
    progress: Progress | None = None,
    **fields: Any,
) -> SegmentationScore:
    """Compute mIoU, pixel accuracy, mean class accuracy and IoU per class.

    Args:
        model: Segmenter, or the folder that one was saved to.
        data: Data in the layout of ADE20K.
        options: Options that differ from those of the training, such as mode and short.
        settings: Images and settings of the evaluation. Default: `EvaluateSegmentationSettings()`.
        progress: Called with the numbers of images done and in total.
        **fields: Fields of `EvaluateSegmentationSettings` by name, which replace those of `settings`: split (train or
            val), limit (maximum number of images, evenly spaced), workers, device, amp and strict (whether to raise on
            a broken image).

    Returns:
        The score, with `miou`, `pixel_accuracy`, `mean_accuracy` and `class_iou`.

    Raises:
        UnsmoothError: If the data, an option or the device is not valid.
    """
    chosen = merge_options(EvaluateSegmentationSettings, settings, fields, EvaluateSegmentationSettings.label)
    is_module = isinstance(model, nn.Module)
    if is_module and not isinstance(model, Segmenter):
        raise UnsmoothError(f"model must be a segmenter or the folder of one (got {type(model).__name__})")
    built = model if isinstance(model, Segmenter) else load_segmenter(model)
    changed = _change_options(built.options, options or {})
    scenes = open_scenes(data, chosen.split).limit(chosen.limit)
    if chosen.device is not None or not is_module:
        _move(built, choose_device(chosen.device, mps=False))
    if changed.mode == "whole":
        check_any_size(built, f"this {type(built.backbone).__name__}")
    batches = evaluation_batches(validation(built, scenes, changed, chosen.strict), 1, chosen.workers)
    done = 0

    def with_progress() -> Iterable[FullImages]:
        nonlocal done
        for batch in batches:
            yield batch
            done += 1
            if progress is not None:
                progress(done, scenes.count)

    return merge_scores([score(built, with_progress(), device_of(built), chosen.amp, changed)])


def validation(model: Segmenter, scenes: Any, options: SegmentationOptions, strict: bool) -> SceneItems:
    """Scenes with the preprocessing of a segmenter for evaluation."""
    config = preprocessing(model.backbone, options.window)
    view = EvaluationTransform(options, Normalise(config.mean, config.std))
    return SceneItems(scenes, view, config.size[0], options, training=False, strict=strict)


def score(
    model: Segmenter, batches: Iterable[FullImages], device: torch.device, amp: str, options: SegmentationOptions
) -> SegmentationScore:
    """Score a model on batches, without changing its mode or gradients."""
    total = SegmentationScore.empty(options.classes)
    with eval_mode(model):
        for batch in batches:
            total.skipped |= batch.skipped
            for image, labels in zip(batch.full_images, batch.labels, strict=True):
                image = image.to(device)
                with autocast(amp, device):
                    if options.mode == "whole":
                        logits = predict_whole(model, image, model.multiple)
                    else:
                        logits = predict_windows(model, image, options.window)
                total.add(labels.to(device), predicted_classes(logits, (labels.shape[0], labels.shape[1])))
    return total


def _move(model: Segmenter, device: str | torch.device) -> None:
    try:
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise UnsmoothError(f"cannot use the device {device}: {first_line(error)}") from error


def _change_options(options: SegmentationOptions, changes: dict[str, Any]) -> SegmentationOptions:
    for name in changes:
        if name in ("classes", "hidden", "auxiliary", "head", "crop"):
            raise UnsmoothError(f"{name} cannot be changed after training (it is {getattr(options, name)})")
    changed = read_texts(SegmentationOptions, {**options.to_json(), **changes}, "segmentation")
    return replace(changed, short=changed.short or changed.crop)

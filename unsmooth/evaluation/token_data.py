"""Images with labels or masks for `token_scores`: training images are the memory, validation images the queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unsmooth.data.batches import evaluation_batches
from unsmooth.data.datasets import ImageDataset
from unsmooth.data.images import evenly_spaced, subset
from unsmooth.data.random_access import as_images
from unsmooth.data.splits import Splits, open_splits
from unsmooth.data.transforms import Preprocessing
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.settings import EvaluateSettings
from unsmooth.tasks.segmentation.items import SceneItems
from unsmooth.tasks.segmentation.layout import Scenes, find_root, open_scenes
from unsmooth.tasks.segmentation.options import SegmentationOptions
from unsmooth.tasks.segmentation.views import Normalise


@dataclass
class TokenBatch:
    """Images, and for each its label, (1, 1), or its mask, (H, W)."""

    images: Tensor
    targets: list[Tensor]
    skipped: dict[str, str]


class LabelData:
    """Images with labels."""

    masks = False

    def __init__(self, data: str | Path | Splits, prepare: Preprocessing, settings: EvaluateSettings) -> None:
        splits = data if isinstance(data, Splits) else open_splits(data, root=settings.data_dir)
        train, val = as_images(splits.train), as_images(splits.val)
        self.name, self.classes, self.settings = splits.name, splits.classes, settings
        self.parts = [
            ImageDataset(
                subset(part, evenly_spaced(part.count, limit or part.count)), prepare.eval_transform(),
                prepare.size[0], settings.strict,
            )
            for part, limit in ((train, settings.memory_images), (val, settings.limit))
        ]  # fmt: skip
        self.memory, self.queries = (part.count for part in self.parts)

    def batches(self, training: bool) -> Iterator[TokenBatch]:
        part = self.parts[0 if training else 1]
        for batch in evaluation_batches(part, self.settings.batch_size, self.settings.workers, in_order=True):
            yield TokenBatch(batch.images, list(batch.labels.view(-1, 1, 1)), batch.skipped)


class MaskData:
    """Images with masks. Whole images are resized to the size of the host; masks keep their own."""

    masks = True

    def __init__(self, data: str | Path | Splits, prepare: Preprocessing, settings: EvaluateSettings) -> None:
        assert not isinstance(data, Splits)
        parts: list[Scenes] = [
            open_scenes(data, split).limit(limit or 0)
            for split, limit in (("train", settings.memory_images), ("val", settings.limit))
        ]
        side = prepare.size[1]
        self.options = SegmentationOptions(
            classes=settings.mask_classes, reduce_zero_label=settings.reduce_zero_label, crop=side, short=side
        )
        self.name, self.classes, self.settings = str(data), settings.mask_classes, settings
        self.view = _Resize(prepare)
        self.parts, self.channels = parts, prepare.size[0]
        self.memory, self.queries = (part.count for part in parts)

    def batches(self, training: bool) -> Iterator[TokenBatch]:
        items = SceneItems(
            self.parts[0 if training else 1], self.view, self.channels, self.options, training=False,
            strict=self.settings.strict,
        )  # fmt: skip
        for batch in evaluation_batches(items, self.settings.batch_size, self.settings.workers):
            images = torch.stack(batch.full_images) if len(batch) else torch.empty(0)
            yield TokenBatch(images, batch.labels, batch.skipped)


class _Resize:
    """The whole image at the size of the host, normalised, and the labels as they are."""

    def __init__(self, prepare: Preprocessing) -> None:
        self.size = (prepare.size[2], prepare.size[1])
        self.normalise = Normalise(prepare.mean, prepare.std)
        self.filter = Image.Resampling.BICUBIC if prepare.interpolation == "bicubic" else Image.Resampling.BILINEAR

    def __call__(self, image: Image.Image, labels: Image.Image) -> tuple[Tensor, Tensor]:
        return self.normalise(image.resize(self.size, self.filter)), torch.from_numpy(np.array(labels))


def open_token_data(
    data: str | Path | Splits, prepare: Preprocessing, settings: EvaluateSettings
) -> LabelData | MaskData:
    """Open data with masks if it has the layout of ADE20K, otherwise data with labels."""
    return MaskData(data, prepare, settings) if has_masks(data) else LabelData(data, prepare, settings)


def has_masks(data: str | Path | Splits) -> bool:
    if isinstance(data, Splits):
        return False
    try:
        find_root(data)
    except UnsmoothError:
        return False
    return True

"""Dataset of scenes, and its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from unsmooth.data.images import ImageReadError, convert_channels
from unsmooth.data.items import TensorBatch
from unsmooth.data.sampling import seed_everything
from unsmooth.errors import UnsmoothError
from unsmooth.tasks.segmentation.layout import Scenes
from unsmooth.tasks.segmentation.options import SegmentationOptions

View = Callable[[Image.Image, Image.Image], tuple[Tensor, Tensor]]


class SceneItem(NamedTuple):
    image: Tensor | None
    labels: Tensor | None
    skipped: dict[str, str]
    fatal: str = ""


@dataclass
class Crops(TensorBatch):
    """Training batch: crops of one size and their pixel labels."""

    images: Tensor
    labels: Tensor
    skipped: dict[str, str] = field(default_factory=dict)
    fatal: str = ""


@dataclass
class FullImages:
    """Evaluation batch: whole images of any size, and labels at the original sizes."""

    full_images: list[Tensor]
    labels: list[Tensor]
    side: int
    skipped: dict[str, str] = field(default_factory=dict)
    fatal: str = ""

    def __len__(self) -> int:
        return len(self.full_images)

    @property
    def images(self) -> Tensor:
        """Centre crop of each image, of the input size of the host."""
        return torch.stack([_centre_crop(image, self.side) for image in self.full_images])

    def to(self, device: torch.device) -> FullImages:
        images, labels = ([x.to(device, non_blocking=True) for x in xs] for xs in (self.full_images, self.labels))
        return replace(self, full_images=images, labels=labels)

    def microbatches(self, count: int) -> list[FullImages]:
        step = -(-len(self) // count)
        return [
            FullImages(self.full_images[start : start + step], self.labels[start : start + step], self.side)
            for start in range(0, len(self), step)
        ]

    def pin_memory(self) -> FullImages:
        images, labels = ([x.pin_memory() for x in xs] for xs in (self.full_images, self.labels))
        return replace(self, full_images=images, labels=labels)


class SceneItems(Dataset[Any]):
    """Scenes, transformed for a host.

    With a seed, a broken image is replaced by the next one; without a seed, it is skipped. An invalid annotation (of
    another size than its image, or with a value that is no class) stops the run.
    """

    def __init__(self, scenes: Scenes, view: View, channels: int, options: SegmentationOptions, *, training: bool,
                 strict: bool = False) -> None:  # fmt: skip
        self.scenes, self.view, self.channels, self.options = scenes, view, channels, options
        self.training, self.strict = training, strict

    @property
    def count(self) -> int:
        return self.scenes.count

    @property
    def name(self) -> str:
        return str(self.scenes.root)

    def __getitem__(self, key: tuple[int, int | None]) -> SceneItem:
        first, seed = key
        skipped: dict[str, str] = {}
        for offset in range(self.count if seed is not None else 1):
            index = (first + offset) % self.count
            name = self.scenes.images[index]
            try:
                image, labels = self.scenes.read(index, self.options)
                image = convert_channels(image, self.channels)
                if seed is not None:
                    seed_everything(seed)
                return SceneItem(*self.view(image, labels), skipped)
            except (ImageReadError, OSError) as error:
                if self.strict:
                    return SceneItem(
                        None,
                        None,
                        skipped,
                        f"{name} of {self.name} is broken: {error}. Leave out strict_data (--strict-data) to skip it.",
                    )
                skipped[name] = str(error)
            except UnsmoothError as error:
                return SceneItem(None, None, skipped, f"{self.name}: {error}")
        fatal = "" if seed is None else f"{self.name} has no valid image: all {self.count} were skipped"
        return SceneItem(None, None, skipped, fatal)

    def collate(self, items: list[SceneItem]) -> Any:
        """`Crops` in training, `FullImages` in evaluation."""
        images = [item.image for item in items if item.image is not None]
        labels = [item.labels for item in items if item.labels is not None]
        skipped = {name: reason for item in items for name, reason in item.skipped.items()}
        fatal = next((item.fatal for item in items if item.fatal), "")
        if not self.training:
            return FullImages(images, labels, self.options.window, skipped, fatal)
        if not images:
            return Crops(torch.empty(0), torch.empty(0, dtype=torch.int32), skipped, fatal)
        return Crops(torch.stack(images), torch.stack(labels), skipped, fatal)


def _centre_crop(image: Tensor, side: int) -> Tensor:
    height, width = image.shape[1:]
    top, left = max(0, (height - side) // 2), max(0, (width - side) // 2)
    crop = image[:, top : top + side, left : left + side]
    return F.pad(crop, (0, side - crop.shape[2], 0, side - crop.shape[1]))

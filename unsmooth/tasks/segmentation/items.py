"""Scenes that are read when their turn comes, and the batches that are made of them."""

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


class Item(NamedTuple):
    picture: Tensor | None
    labels: Tensor | None
    skipped: dict[str, str]
    fatal: str = ""


@dataclass
class Crops(TensorBatch):
    """A training batch: crops of one size and the labels of their pixels."""

    images: Tensor
    labels: Tensor
    skipped: dict[str, str] = field(default_factory=dict)
    fatal: str = ""


@dataclass
class FullImages:
    """An evaluation batch: whole pictures of any size, and their labels, of other sizes still."""

    pictures: list[Tensor]
    labels: list[Tensor]
    side: int
    skipped: dict[str, str] = field(default_factory=dict)
    fatal: str = ""

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def images(self) -> Tensor:
        """The middle of each picture, of the size that the host takes."""
        return torch.stack([_middle(picture, self.side) for picture in self.pictures])

    def to(self, device: torch.device) -> FullImages:
        pictures, labels = ([x.to(device, non_blocking=True) for x in xs] for xs in (self.pictures, self.labels))
        return replace(self, pictures=pictures, labels=labels)

    def parts(self, count: int) -> list[FullImages]:
        step = -(-len(self) // count)
        return [
            FullImages(self.pictures[at : at + step], self.labels[at : at + step], self.side)
            for at in range(0, len(self), step)
        ]

    def pin_memory(self) -> FullImages:
        pictures, labels = ([x.pin_memory() for x in xs] for xs in (self.pictures, self.labels))
        return replace(self, pictures=pictures, labels=labels)


class SceneItems(Dataset[Any]):
    """One scene at a time. With a seed, a broken picture gives its turn to the next one; without, it is left out.

    What is wrong with an annotation (another size than its picture, a value that is no class) stops the run.
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

    def __getitem__(self, key: tuple[int, int | None]) -> Item:
        place, seed = key
        skipped: dict[str, str] = {}
        for turn in range(self.count if seed is not None else 1):
            at = (place + turn) % self.count
            name = self.scenes.pictures[at]
            try:
                picture, labels = self.scenes.read(at, self.options)
                picture = convert_channels(picture, self.channels)
                if seed is not None:
                    seed_everything(seed)
                return Item(*self.view(picture, labels), skipped)
            except (ImageReadError, OSError) as error:
                if self.strict:
                    return Item(
                        None, None, skipped, f"{name} of {self.name} is broken: {error}; --strict-data stops here"
                    )
                skipped[name] = str(error)
            except UnsmoothError as error:
                return Item(None, None, skipped, f"{self.name}: {error}")
        fatal = "" if seed is None else f"{self.name} gave no picture that can be used: all {self.count} were skipped"
        return Item(None, None, skipped, fatal)

    def collate(self, items: list[Item]) -> Any:
        """`Crops` in training, `FullImages` in evaluation."""
        pictures = [item.picture for item in items if item.picture is not None]
        labels = [item.labels for item in items if item.labels is not None]
        skipped = {name: reason for item in items for name, reason in item.skipped.items()}
        fatal = next((item.fatal for item in items if item.fatal), "")
        if not self.training:
            return FullImages(pictures, labels, self.options.window, skipped, fatal)
        if not pictures:
            return Crops(torch.empty(0), torch.empty(0, dtype=torch.int32), skipped, fatal)
        return Crops(torch.stack(pictures), torch.stack(labels), skipped, fatal)


def _middle(picture: Tensor, side: int) -> Tensor:
    height, width = picture.shape[1:]
    top, left = max(0, (height - side) // 2), max(0, (width - side) // 2)
    part = picture[:, top : top + side, left : left + side]
    return F.pad(part, (0, side - part.shape[2], 0, side - part.shape[1]))

"""Datasets of images for data loaders: decoded, transformed and collated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from unsmooth.data.images import ImageReadError, Images, ImageSource, convert_channels, evenly_spaced
from unsmooth.data.items import TensorBatch
from unsmooth.data.random_access import as_images
from unsmooth.data.sampling import ITEM, derive_seed, epoch_order, seed_everything
from unsmooth.errors import UnsmoothError


@dataclass
class ImageBatch(TensorBatch):
    """Batch of images with their labels and their indices in the data."""

    images: Tensor
    labels: Tensor
    indices: Tensor
    skipped: dict[str, str] = field(default_factory=dict)
    fatal: str = ""

    def with_mixed(self, images: Tensor, labels: Tensor) -> ImageBatch:
        """The same batch with mixed images and soft labels."""
        return replace(self, images=images, labels=labels)


class ImageItem(NamedTuple):
    image: Tensor | None
    label: int
    image_index: int
    skipped: dict[str, str]
    fatal: str = ""


Key = tuple[int, int | None]  # index of an image, and the seed of its augmentation


class ImageDataset(Dataset[Any]):
    """Images of a source, transformed for a host.

    With a seed, a broken image is replaced by the next one; without a seed, it is skipped.

    Args:
        images: Source of the images.
        transform: Function from a PIL image to a tensor.
        channels: Number of channels that the host takes, 1 or 3.
        strict: Whether a broken image stops the run.
    """

    def __init__(self, images: ImageSource, transform: Any, channels: int, strict: bool = False) -> None:
        self.images, self.transform, self.channels, self.strict = images, transform, channels, strict
        self.indexed: Images | None = images if isinstance(images, Images) else None

    @property
    def count(self) -> int:
        return self.images.count

    @property
    def name(self) -> str:
        return self.images.name

    def collate(self, items: list[ImageItem]) -> ImageBatch:
        return collate(items)

    def __getitem__(self, key: Key) -> ImageItem:
        first, seed = key
        if self.indexed is None:
            self.indexed = as_images(self.images)
        images, skipped = self.indexed, dict[str, str]()
        assert images.labels is not None
        for offset in range(images.count if seed is not None else 1):
            index = (first + offset) % images.count
            try:
                return ImageItem(self.to_tensor(images.load(index), seed), images.labels(index), index, skipped)
            except (ImageReadError, OSError) as error:
                name = images.item_name(index)
                if self.strict:
                    return ImageItem(None, -1, index, skipped, self.strict_error(name, error))
                skipped[name] = str(error)
            except UnsmoothError as error:  # the data ends early, or a shard is broken
                return ImageItem(None, -1, index, skipped, str(error))
        fatal = "" if seed is None else f"{images.name} has no valid image: all {images.count} were skipped"
        return ImageItem(None, -1, first, skipped, fatal)

    def to_tensor(self, image: Image.Image, seed: int | None) -> Tensor:
        """Transform an image; the random numbers of the transform depend on the seed alone."""
        converted = convert_channels(image, self.channels)
        if seed is not None:
            seed_everything(seed)
        tensor: Tensor = self.transform(converted)
        return tensor

    def strict_error(self, name: str, reason: object) -> str:
        """Message for a broken image that stops the run."""
        return f"{name} of {self.images.name} is broken: {reason}. Leave out strict_data (--strict-data) to skip it."


def collate(items: list[ImageItem]) -> ImageBatch:
    """Combine items; those without an image are left out."""
    valid = [item for item in items if item.image is not None]
    skipped = {name: reason for item in items for name, reason in item.skipped.items()}
    images = torch.stack([item.image for item in valid if item.image is not None]) if valid else torch.empty(0)
    labels = torch.tensor([item.label for item in valid], dtype=torch.long)
    indices = torch.tensor([item.image_index for item in valid], dtype=torch.long)
    return ImageBatch(images, labels, indices, skipped, next((item.fatal for item in items if item.fatal), ""))


def sample_batch(dataset: ImageDataset, count: int) -> ImageBatch:
    """One batch of at most `count` evenly spaced images."""
    return collate([dataset[(index, None)] for index in evenly_spaced(dataset.count, count)])


@dataclass
class EpochSampler:
    """Batches of one process in one epoch, from a given step on.

    Attributes:
        count: Number of images.
        batch_size: Images per batch over all processes.
        seed: Seed of the run.
        repeats: Copies of each drawn image; 0 or 1: no repeated augmentation.
        share: Positions in a batch that belong to this process.
        epoch: Epoch to sample.
        start: First step to sample.
    """

    count: int
    batch_size: int
    seed: int
    repeats: int
    share: list[int]
    epoch: int = 0
    start: int = 0

    @property
    def steps(self) -> int:
        return self.count // self.batch_size

    def positions(self, step: int) -> list[int]:
        """Positions in the epoch that belong to this process in a step."""
        return [step * self.batch_size + position for position in self.share]

    def item_seed(self, epoch: int, position: int) -> int:
        return derive_seed(ITEM, self.seed, epoch, position)

    def __iter__(self) -> Iterator[list[Key]]:
        """Keys of each batch, for data that are read by index."""
        epoch, start = self.epoch, self.start
        order = epoch_order(self.count, self.seed, epoch, self.repeats)
        return (
            [(order[position], self.item_seed(epoch, position)) for position in self.positions(step)]
            for step in range(start, self.steps)
        )

    def __len__(self) -> int:
        return self.steps - self.start

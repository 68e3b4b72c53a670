"""ImageDataset as items of a loader: read, transformed and collated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from unsmooth.data.images import ImageReadError, Images, Source, as_images, for_host, spread
from unsmooth.data.items import TensorBatch
from unsmooth.data.sampling import ITEM, derive_seed, epoch_order, seed_everything
from unsmooth.errors import UnsmoothError


@dataclass
class ImageBatch(TensorBatch):
    """A batch: images as the host takes them, labels, places in the data, and what was skipped, by name."""

    images: Tensor
    labels: Tensor
    places: Tensor
    skipped: dict[str, str] = field(default_factory=dict)
    fatal: str = ""  # why the run cannot go on: a worker cannot raise in words

    def replaced(self, images: Tensor, labels: Tensor) -> ImageBatch:
        return replace(self, images=images, labels=labels)


class Item(NamedTuple):
    image: Tensor | None
    label: int
    place: int
    skipped: dict[str, str]
    fatal: str = ""


Key = tuple[int, int | None]  # place of an image, and the seed of its augmentation


class ImageDataset(Dataset[Any]):
    """One image at a time. With a seed, a broken image gives its turn to the next one; without, it is left out."""

    def __init__(self, images: Source, transform: Any, channels: int, strict: bool = False) -> None:
        self.images, self.transform, self.channels, self.strict = images, transform, channels, strict
        self.by_place: Images | None = images if isinstance(images, Images) else None

    @property
    def count(self) -> int:
        return self.images.count

    @property
    def name(self) -> str:
        return self.images.name

    def collate(self, items: list[Item]) -> ImageBatch:
        return collate(items)

    def __getitem__(self, key: Key) -> Item:
        place, seed = key
        if self.by_place is None:
            self.by_place = as_images(self.images)
        images, skipped = self.by_place, dict[str, str]()
        assert images.labels is not None
        for turn in range(images.count if seed is not None else 1):
            at = (place + turn) % images.count
            try:
                return Item(self.tensor(images.picture(at), seed), images.labels(at), at, skipped)
            except (ImageReadError, OSError) as error:
                name = images.item(at)
                if self.strict:
                    return Item(None, -1, at, skipped, self.refusal(name, error))
                skipped[name] = str(error)
            except UnsmoothError as error:  # the data ends early, or a shard is broken
                return Item(None, -1, at, skipped, str(error))
        fatal = "" if seed is None else f"{images.name} gave no image that can be used: all {images.count} were skipped"
        return Item(None, -1, place, skipped, fatal)

    def tensor(self, picture: Image.Image, seed: int | None) -> Tensor:
        """A picture as the host takes it; the transform meets the random numbers of the seed and no others."""
        wanted = for_host(picture, self.channels)
        if seed is not None:
            seed_everything(seed)
        tensor: Tensor = self.transform(wanted)
        return tensor

    def refusal(self, name: str, reason: object) -> str:
        return f"{name} of {self.images.name} is broken: {reason}; --strict-data stops here"


def collate(items: list[Item]) -> ImageBatch:
    whole = [item for item in items if item.image is not None]
    skipped = {name: reason for item in items for name, reason in item.skipped.items()}
    images = torch.stack([item.image for item in whole if item.image is not None]) if whole else torch.empty(0)
    labels = torch.tensor([item.label for item in whole], dtype=torch.long)
    places = torch.tensor([item.place for item in whole], dtype=torch.long)
    return ImageBatch(images, labels, places, skipped, next((item.fatal for item in items if item.fatal), ""))


def sample_batch(pictures: ImageDataset, count: int) -> ImageBatch:
    """One batch of so many images, spread over the data, for a look."""
    return collate([pictures[(place, None)] for place in spread(pictures.count, count)])


@dataclass
class EpochSampler:
    """What one process takes of an epoch, from a step on. It does not know the loader, which so ends when let go."""

    count: int
    batch_size: int
    seed: int
    repeats: int
    mine: list[int]  # places in a batch
    epoch: int = 0
    start: int = 0

    @property
    def steps(self) -> int:
        return self.count // self.batch_size

    def positions(self, step: int) -> list[int]:
        """The positions in the epoch that this process takes in a step."""
        return [step * self.batch_size + place for place in self.mine]

    def item_seed(self, epoch: int, position: int) -> int:
        return derive_seed(ITEM, self.seed, epoch, position)

    def __iter__(self) -> Iterator[list[Key]]:
        """The keys of each batch, for data that is read by place."""
        epoch, start = self.epoch, self.start
        order = epoch_order(self.count, self.seed, epoch, self.repeats)
        return (
            [(order[position], self.item_seed(epoch, position)) for position in self.positions(step)]
            for step in range(start, self.steps)
        )

    def __len__(self) -> int:
        return self.steps - self.start

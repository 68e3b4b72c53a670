"""Images together with the noise that decides which of their patches are masked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from unsmooth.data.datasets import ImageDataset, Item, Key
from unsmooth.data.items import TensorBatch
from unsmooth.data.sampling import derive_seed

MASK, HELD = 0x3A5C, 0x3A5D  # streams of random numbers: masks of training, and of validation


@dataclass
class Masked(TensorBatch):
    """A batch: images, and for each a random number a patch. The patches with the smallest ones are seen."""

    images: Tensor
    noise: Tensor
    skipped: dict[str, str] = field(default_factory=dict)
    fatal: str = ""


class MaskedSample(NamedTuple):
    item: Item
    noise: Tensor


class MaskedPictures(Dataset[MaskedSample]):
    """ImageDataset with mask noise: of the item's seed in training, of its place in validation, and of nothing else."""

    def __init__(self, pictures: ImageDataset, patches: int) -> None:
        self.pictures, self.patches = pictures, patches

    @property
    def count(self) -> int:
        return self.pictures.count

    @property
    def name(self) -> str:
        return self.pictures.name

    def __getitem__(self, key: Key) -> MaskedSample:
        item, seed = self.pictures[key], key[1]
        generator = torch.Generator().manual_seed(
            derive_seed(HELD, item.image_index) if seed is None else derive_seed(MASK, seed)
        )
        return MaskedSample(item, torch.rand(self.patches, generator=generator))

    def collate(self, drawn: list[MaskedSample]) -> Masked:
        labelled = self.pictures.collate([one.item for one in drawn])
        noise = [one.noise for one in drawn if one.item.image is not None]
        return Masked(
            labelled.images, torch.stack(noise) if noise else torch.empty(0), labelled.skipped, labelled.fatal
        )

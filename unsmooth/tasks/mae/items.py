"""Images with the noise that determines their masks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from unsmooth.data.datasets import ImageDataset, ImageItem, Key
from unsmooth.data.items import TensorBatch
from unsmooth.data.sampling import derive_seed

TRAINING, VALIDATION = 0x3A5C, 0x3A5D  # streams of random numbers for masks


@dataclass
class MaskedBatch(TensorBatch):
    """Batch of images with one random number per patch; the patches with the lowest numbers stay visible."""

    images: Tensor
    noise: Tensor
    skipped: dict[str, str] = field(default_factory=dict)
    fatal: str = ""


class MaskedSample(NamedTuple):
    item: ImageItem
    noise: Tensor


class MaskedImages(Dataset[MaskedSample]):
    """Images with mask noise, which is seeded by the item's seed in training and by its index in validation."""

    def __init__(self, images: ImageDataset, patches: int) -> None:
        self.images, self.patches = images, patches

    @property
    def count(self) -> int:
        return self.images.count

    @property
    def name(self) -> str:
        return self.images.name

    def __getitem__(self, key: Key) -> MaskedSample:
        item, seed = self.images[key], key[1]
        generator = torch.Generator().manual_seed(
            derive_seed(VALIDATION, item.image_index) if seed is None else derive_seed(TRAINING, seed)
        )
        return MaskedSample(item, torch.rand(self.patches, generator=generator))

    def collate(self, samples: list[MaskedSample]) -> MaskedBatch:
        batch = self.images.collate([sample.item for sample in samples])
        noise = [sample.noise for sample in samples if sample.item.image is not None]
        return MaskedBatch(batch.images, torch.stack(noise) if noise else torch.empty(0), batch.skipped, batch.fatal)

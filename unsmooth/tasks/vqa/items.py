"""Questions with their pictures, one by one and as batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from unsmooth.data.datasets import Key
from unsmooth.data.images import ImageReadError, convert_channels, read_image
from unsmooth.data.items import TensorBatch
from unsmooth.tasks.huggingface import model_class
from unsmooth.tasks.vqa.questions import Split
from unsmooth.tasks.vqa.text import Array, Text


@dataclass
class VqaBatch(TensorBatch):
    """A batch: pictures padded to one size and where they are, pieces of text and where they are, and targets."""

    images: Tensor
    pixel_mask: Tensor
    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    indices: Tensor
    skipped: dict[str, str] = field(default_factory=dict)
    fatal: str = ""

    def inputs(self) -> dict[str, Tensor]:
        """As ViLT takes them."""
        return {
            "pixel_values": self.images, "pixel_mask": self.pixel_mask, "input_ids": self.input_ids,
            "attention_mask": self.attention_mask, "labels": self.labels,
        }  # fmt: skip


class Item(NamedTuple):
    image: Tensor | None
    place: int
    skipped: dict[str, str]
    fatal: str = ""


class VqaDataset(Dataset[Item]):
    """The questions of a split. With a seed, a broken picture gives its turn to the next question; without, it is left
    out. Nothing is drawn: ViLT's pictures are resized and no more."""

    def __init__(self, split: Split, text: Text, targets: list[dict[int, float]], prepare: Any, channels: int,
                 answers: int, strict: bool) -> None:  # fmt: skip
        self.split, self.prepare, self.channels, self.answers, self.strict = split, prepare, channels, answers, strict
        # Arrays: every worker would end up with its own copy of lists and strings.
        self.images: Array = np.array([question.image for question in split.questions], dtype=np.int64)
        self.ids, self.mask = text.encode([question.text for question in split.questions])
        self.ends = np.cumsum([len(one) for one in targets])
        self.labels: Array = np.array([label for one in targets for label in one], dtype=np.int32)
        self.scores: Array = np.array([score for one in targets for score in one.values()], dtype=np.float32)

    @property
    def count(self) -> int:
        return len(self.images)

    @property
    def name(self) -> str:
        return self.split.name

    def __getitem__(self, key: Key) -> Item:
        place, seed = key
        skipped: dict[str, str] = {}
        for turn in range(self.count if seed is not None else 1):
            at = (place + turn) % self.count
            name = self.split.item(int(self.images[at]))
            try:
                return Item(
                    self.prepare(convert_channels(read_image(self.split.folder / name), self.channels)), at, skipped
                )
            except (ImageReadError, OSError) as error:
                if self.strict:
                    return Item(None, at, skipped, f"{name} is broken: {error}; --strict-data stops here")
                skipped[name] = str(error)
        fatal = "" if seed is None else f"{self.name} has no picture that can be used: all were skipped"
        return Item(None, place, skipped, fatal)

    def collate(self, items: list[Item]) -> VqaBatch:
        whole = [(item.image, item.place) for item in items if item.image is not None]
        skipped = {name: reason for item in items for name, reason in item.skipped.items()}
        fatal = next((item.fatal for item in items if item.fatal), "")
        places = [place for _, place in whole]
        images, pixels = padded([image for image, _ in whole])
        labels = torch.zeros(len(whole), self.answers)
        for row, place in zip(labels, places, strict=True):
            own = slice(self.ends[place - 1] if place else 0, self.ends[place])
            row[self.labels[own]] = torch.from_numpy(self.scores[own])
        ids, mask = (torch.from_numpy(array[places]).long() for array in (self.ids, self.mask))
        return VqaBatch(images, pixels, ids, mask, labels, torch.tensor(places, dtype=torch.long), skipped, fatal)


def padded(images: list[Tensor]) -> tuple[Tensor, Tensor]:
    """ImageDataset of several sizes as one tensor, zero to the right and below, and a mask that is 1 where they are."""
    high, wide = (max((image.shape[side] for image in images), default=0) for side in (1, 2))
    out = torch.zeros(len(images), images[0].shape[0] if images else 0, high, wide)
    mask = torch.zeros(len(images), high, wide, dtype=torch.long)
    for i, image in enumerate(images):
        out[i, :, : image.shape[1], : image.shape[2]] = image
        mask[i, : image.shape[1], : image.shape[2]] = 1
    return out, mask


def preparation(config: Any) -> Any:
    """ViLT's way with a picture: the shorter side as the host's, the longer at most 5/3 of it, whole patches."""
    processor = model_class("ViltImageProcessor")(
        size={"shortest_edge": config.image_size}, size_divisor=config.patch_size
    )

    def prepare(picture: Image.Image) -> Tensor:
        tensor: Tensor = processor(images=picture, do_pad=False, return_tensors="pt")["pixel_values"][0]
        return tensor

    return prepare

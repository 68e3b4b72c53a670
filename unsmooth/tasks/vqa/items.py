"""Dataset of questions with images, and its batches."""

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
    """Batch of padded images and questions with their masks, and targets."""

    images: Tensor
    pixel_mask: Tensor
    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    indices: Tensor
    skipped: dict[str, str] = field(default_factory=dict)
    fatal: str = ""

    def inputs(self) -> dict[str, Tensor]:
        """Keyword arguments of ViLT."""
        return {
            "pixel_values": self.images, "pixel_mask": self.pixel_mask, "input_ids": self.input_ids,
            "attention_mask": self.attention_mask, "labels": self.labels,
        }  # fmt: skip


class QuestionItem(NamedTuple):
    image: Tensor | None
    question_index: int
    skipped: dict[str, str]
    fatal: str = ""


class VqaDataset(Dataset[QuestionItem]):
    """Questions of a split with their images, which are resized but not augmented.

    With a seed, a question with a broken image is replaced by the next one; without a seed, it is skipped.
    """

    def __init__(self, split: Split, text: Text, targets: list[dict[int, float]], transform: Any, channels: int,
                 answers: int, strict: bool) -> None:  # fmt: skip
        self.split, self.transform, self.channels, self.answers, self.strict = (
            split,
            transform,
            channels,
            answers,
            strict,
        )
        # Arrays, since every worker would copy lists (reference counts defeat copy-on-write).
        self.images: Array = np.array([question.image for question in split.questions], dtype=np.int64)
        self.ids, self.mask = text.encode([question.text for question in split.questions])
        self.ends = np.cumsum([len(scores) for scores in targets])
        self.labels: Array = np.array([label for scores in targets for label in scores], dtype=np.int32)
        self.scores: Array = np.array([score for scores in targets for score in scores.values()], dtype=np.float32)

    @property
    def count(self) -> int:
        return len(self.images)

    @property
    def name(self) -> str:
        return self.split.name

    def __getitem__(self, key: Key) -> QuestionItem:
        first, seed = key
        skipped: dict[str, str] = {}
        for offset in range(self.count if seed is not None else 1):
            index = (first + offset) % self.count
            name = self.split.image_file(int(self.images[index]))
            try:
                return QuestionItem(
                    self.transform(convert_channels(read_image(self.split.folder / name), self.channels)),
                    index,
                    skipped,
                )
            except (ImageReadError, OSError) as error:
                if self.strict:
                    return QuestionItem(
                        None,
                        index,
                        skipped,
                        f"{name} is broken: {error}. Leave out strict_data (--strict-data) to skip it.",
                    )
                skipped[name] = str(error)
        fatal = "" if seed is None else f"{self.name} has no valid image: all were skipped"
        return QuestionItem(None, first, skipped, fatal)

    def collate(self, items: list[QuestionItem]) -> VqaBatch:
        valid = [(item.image, item.question_index) for item in items if item.image is not None]
        skipped = {name: reason for item in items for name, reason in item.skipped.items()}
        fatal = next((item.fatal for item in items if item.fatal), "")
        indices = [index for _, index in valid]
        images, pixels = pad_images([image for image, _ in valid])
        labels = torch.zeros(len(valid), self.answers)
        for row, index in zip(labels, indices, strict=True):
            span = slice(self.ends[index - 1] if index else 0, self.ends[index])
            row[self.labels[span]] = torch.from_numpy(self.scores[span])
        ids, mask = (torch.from_numpy(array[indices]).long() for array in (self.ids, self.mask))
        return VqaBatch(images, pixels, ids, mask, labels, torch.tensor(indices, dtype=torch.long), skipped, fatal)


def pad_images(images: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Images of several sizes as one tensor, zero-padded on the right and below, and a mask of the pixels."""
    high, wide = (max((image.shape[side] for image in images), default=0) for side in (1, 2))
    out = torch.zeros(len(images), images[0].shape[0] if images else 0, high, wide)
    mask = torch.zeros(len(images), high, wide, dtype=torch.long)
    for i, image in enumerate(images):
        out[i, :, : image.shape[1], : image.shape[2]] = image
        mask[i, : image.shape[1], : image.shape[2]] = 1
    return out, mask


def image_transform(config: Any) -> Any:
    """ViLT's preprocessing: shorter side as configured, longer side at most 5/3 of it, multiples of the patch size."""
    processor = model_class("ViltImageProcessor")(
        size={"shortest_edge": config.image_size}, size_divisor=config.patch_size
    )

    def transform(image: Image.Image) -> Tensor:
        tensor: Tensor = processor(images=image, do_pad=False, return_tensors="pt")["pixel_values"][0]
        return tensor

    return transform

"""From a picture and its labels to what the model learns from or is eval_model on. Both are always changed alike.

Training, as is common for ADE20K: a random size, a random crop that no class may fill, a mirror image, other colours.
Randomness comes from the generators that the caller has seeded.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.transforms import ColorJitter

from unsmooth.tasks.segmentation.layout import IGNORE
from unsmooth.tasks.segmentation.options import SegmentationOptions

TRIES = 10  # crops that are drawn until no class fills too much of one
LONGEST = 4  # the longer side is at most so many times `short`: strips stay small

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Normalise:
    """A picture as a tensor, with the mean and deviation that the host wants."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, picture: Image.Image) -> Tensor:
        pixels = np.asarray(picture, dtype=np.float32).reshape(picture.height, picture.width, -1) / 255
        scaled = (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1)))


@dataclass(frozen=True)
class Training:
    """A crop of a picture and the same crop of its labels; what lies outside of the picture has no label."""

    options: SegmentationOptions
    normalise: Normalise
    hflip: float = 0.5
    color_jitter: float = 0.0

    def __call__(self, picture: Image.Image, labels: Image.Image) -> tuple[Tensor, Tensor]:
        options, side = self.options, self.options.window
        size = fitted(picture.size, options.short * random.uniform(options.smallest, options.largest))
        labels = labels.resize(size, Image.Resampling.NEAREST)
        box = crop_box(labels, side, options.cat_max_ratio)
        picture = picture.resize(size, Image.Resampling.BILINEAR).crop(box)
        labels = labels.crop(box)
        if random.random() < self.hflip:
            mirror = Image.Transpose.FLIP_LEFT_RIGHT
            picture, labels = picture.transpose(mirror), labels.transpose(mirror)
        if self.color_jitter:
            picture = jitter(self.color_jitter)(picture)
        pad = (0, side - picture.width, 0, side - picture.height)
        wanted = torch.from_numpy(np.array(labels))
        return F.pad(self.normalise(picture), pad), F.pad(wanted, pad, value=IGNORE)


@dataclass(frozen=True)
class Evaluation:
    """A whole picture with its shorter side as asked, and its labels at their own size."""

    options: SegmentationOptions
    normalise: Normalise

    def __call__(self, picture: Image.Image, labels: Image.Image) -> tuple[Tensor, Tensor]:
        sized = picture.resize(fitted(picture.size, self.options.short), Image.Resampling.BILINEAR)
        return self.normalise(sized), torch.from_numpy(np.array(labels))


def fitted(size: tuple[int, int], short: float) -> tuple[int, int]:
    """A size of the same aspect whose shorter side is `short`, unless the longer one would be too long."""
    scale = min(short / min(size), LONGEST * short / max(size))
    return max(1, int(size[0] * scale + 0.5)), max(1, int(size[1] * scale + 0.5))


def crop_box(labels: Image.Image, side: int, most: float) -> Box:
    """A random square within an image (or all of it, along a side that is shorter) that no class fills."""
    width, height = min(side, labels.width), min(side, labels.height)
    box: Box = (0, 0, width, height)
    for _ in range(TRIES):
        left, top = random.randint(0, labels.width - width), random.randint(0, labels.height - height)
        box = (left, top, left + width, top + height)
        if most >= 1 or is_mixed(np.asarray(labels.crop(box)), most):
            break
    return box


def is_mixed(labels: np.ndarray[tuple[int, ...], np.dtype[np.int32]], most: float) -> bool:
    """Whether there are several classes and none has more than this share of the labelled pixels."""
    counts = np.unique(labels[labels != IGNORE], return_counts=True)[1]
    return len(counts) > 1 and counts.max() <= most * counts.sum()


def jitter(strength: float) -> ColorJitter:
    """Other colours: at 0.5 the ranges of mmsegmentation's photometric distortion."""
    tone = min(strength, 1.0)
    return ColorJitter(brightness=tone / 4, contrast=tone, saturation=tone, hue=tone / 10)

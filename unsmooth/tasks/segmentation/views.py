"""Transforms of an image together with its labels.

Training uses the usual augmentation for ADE20K: random resize, random crop that no class dominates, horizontal flip and
colour jitter. Random numbers come from the global generators, which the caller seeds.
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

TRIES = 10  # maximum number of random crops until no class dominates
MAX_ASPECT = 4  # bound of the longer side, as a multiple of `short`

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Normalise:
    """Image to tensor, normalised with the mean and standard deviation of the host."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: Image.Image) -> Tensor:
        pixels = np.asarray(image, dtype=np.float32).reshape(image.height, image.width, -1) / 255
        scaled = (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1)))


@dataclass(frozen=True)
class TrainingTransform:
    """Random crop of an image and its labels; padding is unlabelled."""

    options: SegmentationOptions
    normalise: Normalise
    hflip: float = 0.5
    color_jitter: float = 0.0

    def __call__(self, image: Image.Image, labels: Image.Image) -> tuple[Tensor, Tensor]:
        options, side = self.options, self.options.window
        size = resized_size(image.size, options.short * random.uniform(options.smallest, options.largest))
        labels = labels.resize(size, Image.Resampling.NEAREST)
        box = crop_box(labels, side, options.cat_max_ratio)
        image = image.resize(size, Image.Resampling.BILINEAR).crop(box)
        labels = labels.crop(box)
        if random.random() < self.hflip:
            mirror = Image.Transpose.FLIP_LEFT_RIGHT
            image, labels = image.transpose(mirror), labels.transpose(mirror)
        if self.color_jitter:
            image = jitter(self.color_jitter)(image)
        pad = (0, side - image.width, 0, side - image.height)
        targets = torch.from_numpy(np.array(labels))
        return F.pad(self.normalise(image), pad), F.pad(targets, pad, value=IGNORE)


@dataclass(frozen=True)
class EvaluationTransform:
    """Whole image with its shorter side resized, and labels at the original size."""

    options: SegmentationOptions
    normalise: Normalise

    def __call__(self, image: Image.Image, labels: Image.Image) -> tuple[Tensor, Tensor]:
        resized = image.resize(resized_size(image.size, self.options.short), Image.Resampling.BILINEAR)
        return self.normalise(resized), torch.from_numpy(np.array(labels))


def resized_size(size: tuple[int, int], short: float) -> tuple[int, int]:
    """Size of the same aspect ratio whose shorter side is `short`, unless the longer side would be too long."""
    scale = min(short / min(size), MAX_ASPECT * short / max(size))
    return max(1, int(size[0] * scale + 0.5)), max(1, int(size[1] * scale + 0.5))


def crop_box(labels: Image.Image, side: int, most: float) -> Box:
    """Random square crop that no class dominates; sides shorter than the crop are kept whole."""
    width, height = min(side, labels.width), min(side, labels.height)
    box: Box = (0, 0, width, height)
    for _ in range(TRIES):
        left, top = random.randint(0, labels.width - width), random.randint(0, labels.height - height)
        box = (left, top, left + width, top + height)
        if most >= 1 or is_mixed(np.asarray(labels.crop(box)), most):
            break
    return box


def is_mixed(labels: np.ndarray[tuple[int, ...], np.dtype[np.int32]], most: float) -> bool:
    """Whether there are several classes, none with more than this share of the labelled pixels."""
    counts = np.unique(labels[labels != IGNORE], return_counts=True)[1]
    return len(counts) > 1 and counts.max() <= most * counts.sum()


def jitter(strength: float) -> ColorJitter:
    """Colour jitter; at 0.5 with the ranges of mmsegmentation's photometric distortion."""
    tone = min(strength, 1.0)
    return ColorJitter(brightness=tone / 4, contrast=tone, saturation=tone, hue=tone / 10)

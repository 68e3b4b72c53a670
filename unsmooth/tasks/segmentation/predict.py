"""Predictions for images of any size: whole, or by sliding windows whose logits are averaged."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WINDOW_BATCH = 8  # windows per forward pass
CHUNK = 16  # classes that are resized together


def windows(length: int, side: int) -> list[int]:
    """First pixels of the windows along a side, two thirds of a window apart; the last window ends with the image."""
    step = max(1, side * 2 // 3)
    return [min(start, length - side) for start in range(0, max(1, length - side + step), step)]


def predict_windows(model: nn.Module, image: Tensor, side: int) -> Tensor:
    """Logits (classes, height, width) of an image, averaged over the windows that contain a pixel."""
    height, width = image.shape[1:]
    padded = F.pad(image, (0, max(0, side - width), 0, max(0, side - height)))
    corners = [(top, left) for top in windows(padded.shape[1], side) for left in windows(padded.shape[2], side)]
    total: Tensor | None = None
    counts = padded.new_zeros(padded.shape[1:], dtype=torch.float32)
    for start in range(0, len(corners), WINDOW_BATCH):
        batch = corners[start : start + WINDOW_BATCH]
        views = torch.stack([padded[:, top : top + side, left : left + side] for top, left in batch])
        for (top, left), logits in zip(batch, model(views).float(), strict=True):
            if total is None:
                total = logits.new_zeros(len(logits), *padded.shape[1:])
            total[:, top : top + side, left : left + side] += logits
            counts[top : top + side, left : left + side] += 1
    assert total is not None
    return (total / counts)[:, :height, :width]


def predict_whole(model: nn.Module, image: Tensor, multiple: int) -> Tensor:
    """Logits of a whole image, padded to a multiple of the divisor of the host."""
    height, width = image.shape[1:]
    padded = F.pad(image, (0, -width % multiple, 0, -height % multiple))
    logits: Tensor = model(padded[None])[0].float()
    return logits[:, :height, :width]


def predicted_classes(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Class of each pixel at the original size; the number of classes if the logits are not finite.

    Logits are resized for some classes at a time, since all of them would take gigabytes for a photograph.
    """
    if not logits.isfinite().all():
        return torch.full(size, len(logits), device=logits.device)
    best = torch.full(size, -torch.inf, device=logits.device)
    classes = torch.zeros(size, dtype=torch.long, device=logits.device)
    for first in range(0, len(logits), CHUNK):
        resized = F.interpolate(logits[None, first : first + CHUNK], size, mode="bilinear", align_corners=False)[0]
        value, channel = resized.max(0)
        better = value > best
        best = torch.where(better, value, best)
        classes = torch.where(better, channel + first, classes)
    return classes

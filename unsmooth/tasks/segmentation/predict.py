"""What a segmenter says about a picture of any size: whole, or by windows whose logits are averaged."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AT_ONCE = 8  # windows that are run together
CHUNK = 16  # classes that are brought to a picture's own size together


def windows(length: int, side: int) -> list[int]:
    """Where windows begin along a side, two thirds of a window apart; the last one ends with the picture."""
    step = max(1, side * 2 // 3)
    return [min(at, length - side) for at in range(0, max(1, length - side + step), step)]


def sliding(model: nn.Module, picture: Tensor, side: int) -> Tensor:
    """Logits (classes, height, width) of a picture: the mean over the windows that see a pixel."""
    height, width = picture.shape[1:]
    padded = F.pad(picture, (0, max(0, side - width), 0, max(0, side - height)))
    places = [(top, left) for top in windows(padded.shape[1], side) for left in windows(padded.shape[2], side)]
    total: Tensor | None = None
    seen = padded.new_zeros(padded.shape[1:], dtype=torch.float32)
    for at in range(0, len(places), AT_ONCE):
        some = places[at : at + AT_ONCE]
        views = torch.stack([padded[:, top : top + side, left : left + side] for top, left in some])
        for (top, left), logits in zip(some, model(views).float(), strict=True):
            if total is None:
                total = logits.new_zeros(len(logits), *padded.shape[1:])
            total[:, top : top + side, left : left + side] += logits
            seen[top : top + side, left : left + side] += 1
    assert total is not None
    return (total / seen)[:, :height, :width]


def at_once(model: nn.Module, picture: Tensor, multiple: int) -> Tensor:
    """Logits of a whole picture, filled up to a size that the host can divide."""
    height, width = picture.shape[1:]
    padded = F.pad(picture, (0, -width % multiple, 0, -height % multiple))
    logits: Tensor = model(padded[None])[0].float()
    return logits[:, :height, :width]


def called(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """The class of each pixel of a picture's own size; as many as there are classes where logits are not finite.

    The largest of bilinearly scaled logits, some classes at a time: all at once would take gigabytes of a photograph.
    """
    if not logits.isfinite().all():
        return torch.full(size, len(logits), device=logits.device)
    best = torch.full(size, -torch.inf, device=logits.device)
    classes = torch.zeros(size, dtype=torch.long, device=logits.device)
    for first in range(0, len(logits), CHUNK):
        some = F.interpolate(logits[None, first : first + CHUNK], size, mode="bilinear", align_corners=False)[0]
        value, place = some.max(0)
        better = value > best
        best = torch.where(better, value, best)
        classes = torch.where(better, place + first, classes)
    return classes

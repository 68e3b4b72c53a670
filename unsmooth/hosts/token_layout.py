"""Token layout: tokens in a tensor, patches among the tokens, and positions of patches in the image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unsmooth.hosts.anatomy import Anatomy, Block

MAX_PREFIX = 64  # text and register tokens before the patches; a larger difference is another resolution


def prefix_of(block: Block, anatomy: Anatomy) -> int:
    """The number of tokens before the patch tokens of a block: class, distillation, register and text tokens."""
    if anatomy.patch_embed is None:
        return 0
    extra = block.tokens - anatomy.patch_embed.tokens_of(block.tokens)
    return extra if 0 <= extra <= MAX_PREFIX else 0


def extent_of(items: Tensor, anatomy: Anatomy) -> tuple[int, ...]:
    """The axes on which the patches of a batch lie, with their lengths.

    (height, width) of images; (frames, height, width) of clips, with the frames of tokens, not of pixels; the axes of
    a spectrogram or a signal as the patch embedding sees them.
    """
    embed = anatomy.patch_embed
    if items.ndim == 4 or embed is None or not embed.grid:
        return tuple(items.shape[-2:])
    if items.ndim == 5:
        return (embed.grid[0] if len(embed.grid) == 3 else 1, *items.shape[-2:])
    return embed.extent


def grid_of(tokens: int, size: Sequence[int]) -> tuple[int, ...] | None:
    """The number of patches along each axis of `size`, or None if `tokens` patches fill no grid.

    Rows and columns of an image of size (height, width); frames, rows and columns of a clip; the number itself of a
    signal.
    """
    if len(size) == 1:
        return (tokens,)
    *frames, height, width = size
    inner, rest = divmod(tokens, math.prod(frames))
    rows = round(math.sqrt(inner * height / width))
    return (*frames, rows, inner // rows) if rows and inner % rows == 0 and not rest else None


def distances(grid: Sequence[int], size: Sequence[int]) -> Tensor:
    """Distances in pixels between the centres of all pairs of patches, (p, p). Frames of a clip lie on each other."""
    frames = len(grid) - 2
    axes = [torch.arange(n) * (0.0 if i < frames else size[i] / n) for i, n in enumerate(grid)]
    centres = torch.stack([axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")], dim=1).double()
    return torch.cdist(centres, centres)


def on_planes(x: Tensor, grid: Sequence[int]) -> Tensor:
    """Patch tokens (B, n, d) as (B · frames, rows, columns, d); a signal has one row."""
    rows, columns = grid[-2:] if len(grid) > 1 else (1, grid[0])
    return x.reshape(-1, rows, columns, x.shape[-1])


def as_tokens(x: Tensor, channels: int) -> Tensor:
    """Tokens of any layout as (B, n, d)."""
    if x.ndim == 4:
        return x.flatten(1, 2) if x.shape[-1] == channels or x.shape[1] != channels else x.flatten(2).mT
    return x if x.ndim == 3 else x.flatten(1, -2)

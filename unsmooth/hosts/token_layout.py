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


def grid_of(tokens: int, size: Sequence[int]) -> tuple[int, int] | None:
    """Rows and columns of `tokens` patches in an image of size (height, width), or None if they fill no grid."""
    height, width = size
    rows = round(math.sqrt(tokens * height / width))
    return (rows, tokens // rows) if rows and tokens % rows == 0 else None


def distances(grid: tuple[int, int], size: Sequence[int]) -> Tensor:
    """Distances in pixels between the centres of all pairs of patches, (p, p)."""
    rows, columns = torch.meshgrid(
        torch.arange(grid[0]) * (size[0] / grid[0]), torch.arange(grid[1]) * (size[1] / grid[1]), indexing="ij"
    )
    centres = torch.stack([rows.flatten(), columns.flatten()], dim=1).double()
    return torch.cdist(centres, centres)


def as_tokens(x: Tensor, channels: int) -> Tensor:
    """Tokens of any layout as (B, n, d)."""
    if x.ndim == 4:
        return x.flatten(1, 2) if x.shape[-1] == channels or x.shape[1] != channels else x.flatten(2).mT
    return x if x.ndim == 3 else x.flatten(1, -2)

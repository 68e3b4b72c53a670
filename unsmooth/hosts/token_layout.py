"""Where tokens lie: in a tensor, which of them are patches, and where those are in the image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unsmooth.hosts.anatomy import Anatomy, Block

MOST_PREFIX = 64  # text and register tokens in front of the patches; more is no prefix but another resolution


def prefix_of(block: Block, anatomy: Anatomy) -> int:
    """How many tokens stand in front of a block's patch tokens: class, distillation, register or text tokens."""
    if anatomy.patches is None:
        return 0
    extra = block.tokens - anatomy.patches.tokens_of(block.tokens)
    return extra if 0 <= extra <= MOST_PREFIX else 0


def grid_of(tokens: int, size: Sequence[int]) -> tuple[int, int] | None:
    """Rows and columns of patch tokens in an image of that height and width, if they fill a grid."""
    height, width = size
    rows = round(math.sqrt(tokens * height / width))
    return (rows, tokens // rows) if rows and tokens % rows == 0 else None


def distances(grid: tuple[int, int], size: Sequence[int]) -> Tensor:
    """Pixels between the centres of any two patches, (p, p)."""
    rows, columns = torch.meshgrid(
        torch.arange(grid[0]) * (size[0] / grid[0]), torch.arange(grid[1]) * (size[1] / grid[1]), indexing="ij"
    )
    places = torch.stack([rows.flatten(), columns.flatten()], dim=1).double()
    return torch.cdist(places, places)


def as_tokens(x: Tensor, channels: int) -> Tensor:
    """Any layout of tokens as (B, n, d)."""
    if x.ndim == 4:
        return x.flatten(1, 2) if x.shape[-1] == channels or x.shape[1] != channels else x.flatten(2).mT
    return x if x.ndim == 3 else x.flatten(1, -2)

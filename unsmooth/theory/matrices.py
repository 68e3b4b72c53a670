"""Shared by all theorems: double precision, the two bands of (…, n, d), norms, and the slope of GELU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.bands import split
from unsmooth.utils.threads import one_thread

Number = Tensor | float

GELU_LIPSCHITZ = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi)
"""The largest slope of the exact GELU, 1.1289…, reached at x = √2. It exceeds 1, so GELU can increase differences."""


def double(x: Number) -> Tensor:
    """`x` in double precision."""
    return torch.as_tensor(x, dtype=torch.float64)


def bands(x: Tensor) -> tuple[Tensor, Tensor]:
    """DC[X] and HC[X] of (…, n, d) tokens, both of X's shape."""
    x = double(x)
    low, high = split(x.reshape(-1, *x.shape[-2:]))
    return low.expand_as(high).reshape(x.shape), high.reshape(x.shape)


def frobenius(x: Tensor) -> Tensor:
    """‖X‖_F of each (…, n, d) matrix."""
    norm: Tensor = torch.linalg.matrix_norm(double(x))
    return norm


def spectral(x: Tensor) -> Tensor:
    """‖X‖₂, the largest singular value of each (…, n, d) matrix."""
    x = double(x)
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    with one_thread():
        norm: Tensor = torch.linalg.eigvalsh(gram)[..., -1].clamp_min(0).sqrt()  # faster than an SVD
    return norm

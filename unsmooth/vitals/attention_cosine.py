"""Similarity of the columns of attention maps: mean |cos| over pairs of columns, per head.

    Σ_{i<j} |cos(A_:,i, A_:,j)| / (m(m−1)/2)                             (anti-oversmoothing, Eq. 75)

1 if all rows are equal, as in the uniform map; 0 for the identity. A column of zeros counts as orthogonal to all
others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.vitals.base import MAPS_DEFAULT, OVER_TOKENS, Undefined, full, register

SMALLEST = 1e-12


@register(
    title="map similarity",
    formula="mean of |cos(A_:,i, A_:,j)| over pairs i < j",
    reading="1: all queries attend to the same keys; 0: each query attends to its own key",
    family="attention",
    of="map",
    accepts=OVER_TOKENS,
    default_sample=MAPS_DEFAULT,
    low=0.0,
    high=1.0,
)
def attention_cosine(a: Tensor) -> Tensor:
    m = a.shape[-1]
    if m < 2:
        raise Undefined("it needs at least two keys")
    a = full(a)
    positive = bool(a.min() >= 0)
    size = a.square().sum(dim=-2).sqrt()
    if size.min() < SMALLEST:  # squares of tiny softmax weights may underflow
        a = a / a.abs().amax(dim=-2, keepdim=True).clamp_min(torch.finfo(a.dtype).tiny)
        size = a.square().sum(dim=-2).sqrt()
    scale = torch.where(size > 0, 1 / size, 0)
    own = (size > 0).sum(dim=-1)
    if positive:  # |cos| = cos, so the sum over pairs is the square of one sum
        pairs = (a @ scale.unsqueeze(-1)).square().sum(dim=(-2, -1)) - own
    else:
        u = a * scale.unsqueeze(-2)
        pairs = (u.mT @ u).abs().sum(dim=(-2, -1)) - own
    return (pairs / (m * (m - 1))).clamp_min(0)

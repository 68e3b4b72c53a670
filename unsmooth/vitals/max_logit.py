"""The largest attention logit: α = max |P|, for each head.

P is what the queries and keys give, scaled, before a mask. A host with an explicit softmax shows it with the mask
added, so there entries whose weight is zero in single precision (87 below their row's largest) are left out. α sets
the rate of the smoothing bounds; in the tens it means that softmax saturates.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import OVER_TOKENS, full, register

CLOSED = 87.0  # so far below a row's largest logit, a weight is below the smallest number of single precision


@register(
    title="largest logit",
    formula="α = max |P|",
    reading="0: uniform attention; tens: softmax saturates",
    family="attention",
    of="scores",
    accepts=OVER_TOKENS,
    low=0.0,
)
def max_logit(p: Tensor) -> Tensor:
    p = full(p)
    low, high = p.flatten(-2).aminmax(dim=-1)
    if not (high - low < CLOSED).all():  # there may be masked pairs
        closed = p < p.amax(dim=-1, keepdim=True) - CLOSED
        low, high = p.masked_fill(closed | p.isinf(), 0).flatten(-2).aminmax(dim=-1)
    return high.maximum(-low)

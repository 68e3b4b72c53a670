"""Largest attention logit: α = max |P|, per head.

P are the scaled scores before the mask. A host with an explicit softmax shows scores with the mask added; there,
entries whose weight is zero in single precision (87 below the largest of their row) are ignored. α sets the rate of the
smoothing bounds. If it is in the tens, softmax saturates.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import MAPS_DEFAULT, OVER_TOKENS, full, register

MASKED = 87.0  # distance below the largest logit of a row at which a weight underflows in single precision


@register(
    title="largest logit",
    formula="α = max |P|",
    reading="0: uniform attention; in the tens: softmax saturates",
    family="attention",
    of="scores",
    accepts=OVER_TOKENS,
    default_sample=MAPS_DEFAULT,
    low=0.0,
)
def max_logit(p: Tensor) -> Tensor:
    p = full(p)
    low, high = p.flatten(-2).aminmax(dim=-1)
    if not (high - low < MASKED).all():
        masked = p < p.amax(dim=-1, keepdim=True) - MASKED
        low, high = p.masked_fill(masked | p.isinf(), 0).flatten(-2).aminmax(dim=-1)
    return high.maximum(-low)

"""The largest attention logit: α = max |P|, for each head.

P is what the queries and keys give, scaled, before a mask (for hosts with an explicit softmax: what goes into it, and
infinite entries are left out). α sets the rate of the smoothing bounds; in the tens it means that softmax saturates.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import OVER_TOKENS, full, register


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
    p = full(p).flatten(-2)
    low, high = p.aminmax(dim=-1)
    if low.isinf().any() or high.isinf().any():  # masked pairs
        low, high = p.masked_fill(p.isinf(), 0).aminmax(dim=-1)
    return high.maximum(-low)

"""Density of attention: the entropy −Σ_j a_ij log a_ij of a row, mean over queries, for each head.

After Context Broadcasting, which reads dense attention off it.

0: every query looks at one key; log m: uniform, an average. `share` is that over log m. Of an effective map with
entries below zero, or rows that do not sum to one, absolute values are taken and rows made to sum to one.
"""

from __future__ import annotations

import math

from torch import Tensor

from unsmooth.vitals.base import OVER_TOKENS, Undefined, distribution, plogp, register


@register(
    title="attention entropy",
    formula="−Σ_j a_ij log a_ij, mean over queries",
    reading="0: each query looks at one key; log m: it averages all of them",
    family="attention",
    of="map",
    accepts=OVER_TOKENS,
    parts=(("share", "over log m, its largest value"),),
    low=0.0,
)
def attention_entropy(a: Tensor) -> dict[str, Tensor]:
    if a.shape[-1] < 2:
        raise Undefined("one key leaves no choice")
    entropy = plogp(distribution(a)).sum(dim=-1).neg().mean(dim=-1)
    return {"": entropy, "share": entropy / math.log(a.shape[-1])}

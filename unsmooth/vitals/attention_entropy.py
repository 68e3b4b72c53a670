"""Entropy of attention: −Σ_j a_ij log a_ij, mean over queries, per head (Context Broadcasting).

0 if every query attends to one key, log m for uniform attention over m keys. `share` is the entropy divided by log m.
Effective maps may have negative entries or rows that do not sum to one: then rows are normalised absolute values.
"""

from __future__ import annotations

import math

from torch import Tensor

from unsmooth.vitals.base import OVER_TOKENS, Undefined, distribution, plogp, register


@register(
    title="attention entropy",
    formula="−Σ_j a_ij log a_ij, mean over queries",
    reading="0: each query attends to one key; log m: it averages all keys",
    family="attention",
    of="map",
    accepts=OVER_TOKENS,
    parts=(("share", "divided by log m, its maximum"),),
    low=0.0,
)
def attention_entropy(a: Tensor) -> dict[str, Tensor]:
    if a.shape[-1] < 2:
        raise Undefined("it needs at least two keys")
    entropy = plogp(distribution(a)).sum(dim=-1).neg().mean(dim=-1)
    return {"": entropy, "share": entropy / math.log(a.shape[-1])}

"""Attention sinks: the share of attention that a few keys receive from all queries, per head.

    r_j = 1/n Σ_i A_ij,   S = {j : r_j ≥ ε},   ε = max(2/m, min(0.3, 10/m)),   value: Σ_{j∈S} r_j

r_j is the attention that key j receives. A key is a sink if it receives ten times its uniform share, or 0.3 of all
attention, the bound of Gu et al. (When Attention Sink Emerges in Language Models, 2025) for the first token of a
language model. `count` is the number of sinks, `largest` the largest r_j. Uniform maps and the identity have no sinks:
0; if all queries attend to one key, the value is 1.

Whether sinks do nothing or broadcast is the question of `sink_value_norm` and `sink_output`. They need values besides
maps. All three are in the group `sinks`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.vitals.base import MAPS_DEFAULT, OVER_TOKENS, Undefined, distribution, register

SHARE, GAIN, LEAST_GAIN = 0.3, 10.0, 2.0  # of all attention; of the uniform share; of that in small maps


def received(a: Tensor) -> Tensor:
    """The attention that each key receives, (…, m), as a share of all attention."""
    if a.shape[-1] < 2:
        raise Undefined("it needs at least two keys")
    return distribution(a).mean(dim=-2)


def are_sinks(share: Tensor) -> Tensor:
    """Which keys are sinks, from the attention that they receive."""
    m = share.shape[-1]
    return share >= max(LEAST_GAIN / m, min(SHARE, GAIN / m)) * (1 - 1e-6)  # rounding must not decide at the bound


@register(
    title="attention sinks",
    formula="Σ of r_j = 1/n Σ_i A_ij over the keys with r_j ≥ max(2/m, min(0.3, 10/m))",
    reading="0: no key receives far more than the others; near 1: a few keys receive all attention",
    family="attention",
    of="map",
    accepts=OVER_TOKENS,
    sample=MAPS_DEFAULT,
    default=False,
    parts=(("count", "number of sinks"), ("largest", "largest share of attention of one key")),
    low=0.0,
    high=1.0,
)
def attention_sink(a: Tensor) -> dict[str, Tensor]:
    share = received(a)
    sinks = are_sinks(share)
    return {
        "": torch.where(sinks, share, 0).sum(dim=-1),
        "count": sinks.sum(dim=-1).to(share.dtype),
        "largest": share.amax(dim=-1),
    }

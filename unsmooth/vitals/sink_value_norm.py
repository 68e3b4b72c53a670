"""Value norm of attention sinks: their mean ‖v_j‖, divided by that of the other keys, per head.

    (Σ_{j∈S} r_j ‖v_j‖ / Σ_{j∈S} r_j) / mean_{j∉S} ‖v_j‖

with the sinks S and the attention r_j that they receive (`attention_sink`). Far below 1, a sink takes attention that
would otherwise go to other keys and adds nothing: the head is switched off for these queries (Guo et al.,
Active-Dormant Attention Heads, 2024). At 1 or above, what it holds reaches every query. Equal values give 1, a sink
with a value of zero gives 0. Heads without a sink have no value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.vitals.attention_sink import are_sinks, received
from unsmooth.vitals.base import MAPS_DEFAULT, OVER_TOKENS, full, register


@register(
    title="value norm of sinks",
    formula="mean ‖v_j‖ of sinks, by the attention they receive, divided by that of the other keys",
    reading="near 0: sinks do nothing; 1: their values are as large as others; above: they broadcast",
    family="signal",
    of="map_values",
    accepts=OVER_TOKENS,
    sample=MAPS_DEFAULT,
    default=False,
    undefined="no head has an attention sink",
    low=0.0,
)
def sink_value_norm(a: Tensor, v: Tensor) -> Tensor:
    share, norms = received(a), full(v).norm(dim=-1)
    sinks = are_sinks(share)
    own = torch.where(sinks, share, 0)
    of_sinks = (own * norms).sum(dim=-1) / own.sum(dim=-1)  # 0/0 without sinks: no value
    of_others = torch.where(sinks, 0, norms).sum(dim=-1) / (~sinks).sum(dim=-1)
    return of_sinks / of_others

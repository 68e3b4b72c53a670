"""Output of attention sinks: their share of what a head writes, and the rank of that output.

    ‖A_S V_S‖² / (‖A_S V_S‖² + ‖A_R V_R‖²),   S the sinks (`attention_sink`), R the other keys

in the Frobenius norm. Near 0 the sinks do nothing, however much attention they receive: a gate on the output
(`gated_attention`) or a key without a value (`sink_logit`) makes them unnecessary. Near 1, unless their values are
small (`sink_value_norm`), the head writes what its sinks hold to every query: a broadcast, for which registers are a
better place. `rank` is the stable rank ‖AV‖_F²/‖AV‖₂² of the output of the head: 1 if all queries receive multiples
of one vector, as from one sink that broadcasts. Heads without a sink have no value. A head whose output is zero has
none either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.utils.threads import one_thread
from unsmooth.vitals.attention_sink import are_sinks, received
from unsmooth.vitals.base import MAP_SAMPLE, OVER_TOKENS, full, register


@register(
    title="output of sinks",
    formula="‖A_S V_S‖² / (‖A_S V_S‖² + ‖A_R V_R‖²)",
    reading="near 0: sinks do nothing; near 1: heads write what their sinks hold to all tokens",
    family="rank",
    of="map_values",
    accepts=OVER_TOKENS,
    sample=MAP_SAMPLE,
    default=False,
    undefined="no head has an attention sink",
    parts=(("rank", "stable rank of the output of heads with sinks"),),
    low=0.0,
    high=1.0,
)
def sink_output(a: Tensor, v: Tensor) -> dict[str, Tensor]:
    a, v = full(a), full(v)
    sinks = are_sinks(received(a))
    output = a @ v
    of_sinks = torch.where(sinks.unsqueeze(-2), a, 0) @ v
    own, rest = (x.square().sum(dim=(-2, -1)) for x in (of_sinks, output - of_sinks))
    gram = (output.mT @ output if output.shape[-1] <= output.shape[-2] else output @ output.mT).double()
    with one_thread():
        largest = torch.linalg.eigvalsh(gram)[..., -1]
    rank = (output.double().square().sum(dim=(-2, -1)) / largest).to(own.dtype)
    none = ~sinks.any(dim=-1)
    return {"": (own / (own + rest)).masked_fill(none, torch.nan), "rank": rank.masked_fill(none, torch.nan)}

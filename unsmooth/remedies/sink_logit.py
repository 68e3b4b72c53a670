"""Sink logit: a softmax that can attend to nothing (Miller, Attention Is Off By One, 2023; OpenAI, gpt-oss, 2025).

    A'_ij = exp(P_ij) / (e^b + Σ_m exp(P_im)),   one b per layer and head, initialised to −10

One more key with a value of zero and the learned score b takes what no token should get. The rows of A' sum to less
than 1, so a head with nothing to add needs no token as a sink. For b → −∞ it is the softmax of the host; at b = −10 the
map of a host with scores of usual size changes by less than 1e-4. Fused attention stays on, with an additive mask; an
explicit map is multiplied by σ(log Σ exp(P) − b). The mask and the biases of the host are part of P.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import HeadPatch, Placement, Remedy, other_scores, register, token_attention
from unsmooth.seam.intercept import AttentionCall, SdpaOptions, add_mask
from unsmooth.utils.options import option, options


@options
class SinkLogitOptions:
    start: float = option("score b of the sink at the start; 0 is the softmax off by one", default=-10.0)


class Sink(HeadPatch):
    """A softmax with one more key, whose value is zero and whose score is learned."""

    rescores = True

    def __init__(self, attention: Attention, start: float):
        super().__init__(attention)
        self.b = nn.Parameter(torch.full((attention.heads,), start))

    def share(self, logits: Tensor) -> Tensor:
        """Share of each row that the sink leaves."""
        return torch.sigmoid(logits.logsumexp(dim=-1, keepdim=True) - self.over_heads(self.b))

    def reweight(self, weights: Tensor, logits: Tensor) -> Tensor:
        return weights * self.share(logits).to(weights.dtype)

    def rescore(self, call: AttentionCall, options: SdpaOptions) -> AttentionCall:
        q, k, scores = call.q, call.k, call.scores
        assert q is not None and k is not None
        mask, causal = options["attn_mask"], options["is_causal"]

        def attend(v: Tensor) -> Tensor:
            bias = add_mask(q.new_zeros(q.shape[-2], k.shape[-2]), mask, causal)
            sink = self.over_heads(self.b).to(q.dtype)
            rows = torch.broadcast_shapes(bias.shape[:-1], (*sink.shape[:-2], q.shape[-2]))
            bias = torch.cat([bias.expand(*rows, -1), sink.expand(*rows, 1)], dim=-1)
            kernel: SdpaOptions = {**options, "attn_mask": bias, "is_causal": False}
            # A key of zeros has the score zero before the mask is added.
            return F.scaled_dot_product_attention(q, F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), **kernel)

        def weights() -> Tensor:
            logits = add_mask(scores(), mask, causal)
            return self.reweight(logits.softmax(dim=-1), logits)

        return AttentionCall(call.v, attend, weights, scores, q, k, call.scale, dropout=call.dropout)


@register
class SinkLogit(Remedy[SinkLogitOptions]):
    key = "sink_logit"
    title = "Sink logit"
    paper = "Miller, Attention Is Off By One, 2023; OpenAI, gpt-oss-120b & gpt-oss-20b Model Card, 2025"
    acts_on = "attention"
    Options = SinkLogitOptions
    parameters = "b (heads)"
    conflicts = other_scores("sink_logit")
    fused = "yes, with a mask"
    start_error = 1e-3
    departures = (
        "The equation is from summaries, not from a paper. Miller's softmax has b = 0 and is trained from scratch; "
        "gpt-oss learns b per head. At the start a pretrained host is unchanged up to a factor 1 − e^b/Σexp(P) in each "
        "row of a map: less than 1e-4 for the default, but more for a row whose scores are all far below zero."
    )

    def exact(self, options: SinkLogitOptions) -> bool:
        return options.start <= -10

    def place(self, block: Block, anatomy: Anatomy, options: SinkLogitOptions) -> list[Placement]:
        attention = token_attention(block)
        return [Placement(attention.core, Sink(attention, options.start))]

    def flops(self, block: Block, anatomy: Anatomy, options: SinkLogitOptions) -> int:
        a = block.attention()
        # One more key, and an additive mask.
        return a.windows * a.heads * a.queries * (2 * (a.head_channels + a.value_channels) + a.keys + 1)

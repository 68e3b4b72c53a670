"""Adder attention, scores only (Shu et al., Adder Attention for Vision Transformer, NeurIPS 2021).

    P_ij = −‖q_i − k_j‖₁ / √d_a,   d_a = 2(1 − 2/π)·d_t,   d_t the channels per head
    H̃ = softmax(P) + I             (rows sum to 2), then H̃V

d_a is the variance of the L1 score for standard normal q and k (Theorem 1). The identity keeps the rank of the map
high (Proposition 1): this is proved for symmetric positive semi-definite maps, and may fail for others. The linear
layers of the host stay; `adder` replaces those too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import Placement, Remedy, ScorePatch, dot_product_attention, other_scores, register
from unsmooth.remedies.kernels.adder import l1_scores
from unsmooth.remedies.kernels.adder_int8 import l1_scores_int8
from unsmooth.seam.intercept import Attend
from unsmooth.utils.options import option, options


@options
class AdderAttentionOptions:
    identity: bool = option("whether the identity is added to the map", default=True)


class AdderScores(ScorePatch):
    """Negative L1 distances as scores, and the identity added to the map."""

    int8 = False  # set by `unsmooth.fold(model, dtype="int8")`

    def __init__(self, attention: Attention, identity: bool, gain: float = 1.0):
        super().__init__(attention)
        self.identity, self.gain = identity, gain
        self.deviation = math.sqrt(2 * (1 - 2 / math.pi) * attention.head_channels)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        if not self.int8:
            return l1_scores(q, k, self.gain) / self.deviation
        scores = l1_scores_int8(q.detach(), k.detach(), 1 / self.deviation)
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
            exact = l1_scores(q, k, self.gain) / self.deviation
            return exact + (scores - exact).detach()
        return scores

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        return attend(v) + v if self.identity else attend(v)

    def matrix(self, weights: Tensor) -> Tensor:
        if not self.identity:
            return weights
        return weights + torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)


def place_adder_scores(block: Block, identity: bool, gain: float = 1.0) -> Placement:
    """The placement of adder scores in a block. Raises `NotApplicable` if its map is not square and needs to be."""
    attention = dot_product_attention(block)
    if identity and attention.queries != attention.keys:
        fewer = "fewer" if attention.keys < attention.queries else "more"
        raise NotApplicable(
            f"it has {fewer} keys than queries, so the identity cannot be added to its map; use identity=false"
        )
    return Placement(attention.core, AdderScores(attention, identity, gain), "attn")


@register
class AdderAttention(Remedy[AdderAttentionOptions]):
    key = "adder_attention"
    title = "Adder attention"
    paper = "Shu et al., Adder Attention for Vision Transformer, NeurIPS 2021"
    acts_on = "attention scores"
    Options = AdderAttentionOptions
    conflicts = other_scores("adder_attention")
    fused = "no: explicit map"
    departures = (
        "The product with V stays a product. Both q and k receive clamped differences as gradients, as inputs do in "
        "AdderNet; the paper does not print the rule for scores."
    )

    def place(self, block: Block, anatomy: Anatomy, options: AdderAttentionOptions) -> list[Placement]:
        return [place_adder_scores(block, options.identity)]

    def flops(self, block: Block, anatomy: Anatomy, options: AdderAttentionOptions) -> int:
        a = block.attention()
        return a.windows * a.heads * a.queries * (a.head_channels if options.identity else 0)

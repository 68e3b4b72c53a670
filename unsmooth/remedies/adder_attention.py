"""Adder attention, scores only (Shu et al., Adder Attention for Vision Transformer, NeurIPS 2021).

    P_ij = −‖q_i − k_j‖₁ / √d_a,   d_a = 2(1 − 2/π)·d_t,   d_t the head's channels
    H̃ = softmax(P) + I             (rows sum to 2), then H̃V

d_a is the variance of the L1 score for standard normal q and k (Theorem 1). The identity keeps the map's
rank up (Proposition 1). The linear layers of the host stay; `adder` replaces those too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import Option, Options, Placement, Remedy, ScorePatch, plain_scores, register
from unsmooth.remedies.kernels.adder import l1_scores
from unsmooth.seam.intercept import Attend

IDENTITY = Option(True, "add the identity to the map")


class AdderScores(ScorePatch):
    """Negative L1 distances as scores, and the identity added to the map."""

    def __init__(self, attention: Attention, identity: bool, gain: float = 1.0):
        super().__init__(attention)
        self.identity, self.gain = identity, gain
        self.deviation = math.sqrt(2 * (1 - 2 / math.pi) * attention.head_channels)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return l1_scores(q, k, self.gain) / self.deviation

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        return attend(v) + v if self.identity else attend(v)

    def matrix(self, weights: Tensor) -> Tensor:
        return (
            weights + torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
            if self.identity
            else weights
        )


def adder_scores(block: Block, identity: bool, gain: float = 1.0) -> Placement:
    """The placement of adder scores in a block, refused where the identity has no meaning."""
    attention = plain_scores(block)
    if identity and attention.queries != attention.keys:
        raise NotApplicable(
            "it has fewer keys than queries, so no identity can be added to its map; use identity=false"
        )
    return Placement(attention.core, AdderScores(attention, identity, gain), "attn")


@register
class AdderAttention(Remedy):
    key = "adder_attention"
    title = "Adder attention"
    paper = "Shu et al., Adder Attention for Vision Transformer, NeurIPS 2021"
    acts_on = "attention scores"
    options = {"identity": IDENTITY}
    conflicts = ("adder", "l2_attention", "logistic_attention")
    fused = "no: explicit map"
    departures = (
        "The product with V stays a product. Both q and k receive clamped differences as gradients, as AdderNet gives "
        "to inputs; the paper does not print the rule for scores."
    )

    def place(self, block: Block, anatomy: Anatomy, options: Options) -> list[Placement]:
        return [adder_scores(block, options["identity"])]

    def flops(self, block: Block, anatomy: Anatomy, options: Options) -> int:
        a = block.core()
        return a.images * a.heads * a.queries * (a.head_channels if options["identity"] else 0)

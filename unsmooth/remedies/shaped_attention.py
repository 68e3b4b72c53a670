"""Shaped attention (Noci et al., The Shaped Transformer, NeurIPS 2023; He & Hofmann, ICLR 2024).

    A' = αI + βA − γJ,   J = 11ᵀ/n,   one α, β and γ per layer and head

The identity carries each token past the attention, as a skip does, and −γJ removes the mean that uniform attention
adds: with α = β = γ = 1 and nearly uniform attention, A' is nearly the identity. A host without skips can then be
trained. It is linear in A, so the map is not computed and fused attention stays on:

    A'V = αV + β·AV − γ·mean_tokens(V)

The mean is over every key: the class token, and in Swin all tokens of a window. It needs the same tokens as queries and
keys, so it does not fit attention with pooled keys.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import HeadPatch, Placement, Remedy, register, square_attention
from unsmooth.seam.intercept import Attend
from unsmooth.utils.options import option, options

STARTS = {"identity": (0.0, 1.0, 0.0), "paper": (1.0, 1.0, 1.0)}


@options
class ShapedAttentionOptions:
    start: Literal["identity", "paper"] = option(
        "α, β, γ at the start: 0, 1, 0 leaves a pretrained host unchanged; 1, 1, 1 is the paper's, for hosts trained "
        "from scratch or without skips",
        default="identity",
    )


class ShapedMap(HeadPatch):
    """An attention map plus learned multiples of the identity and of the uniform map."""

    def __init__(self, attention: Attention, start: str):
        super().__init__(attention)
        alpha, beta, gamma = STARTS[start]
        self.alpha = nn.Parameter(torch.full((attention.heads,), alpha))
        self.beta = nn.Parameter(torch.full((attention.heads,), beta))
        self.gamma = nn.Parameter(torch.full((attention.heads,), gamma))

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        alpha, beta, gamma = map(self.over_heads, (self.alpha, self.beta, self.gamma))
        own = (-gamma * v.mean(dim=-2, keepdim=True)).addcmul(v, alpha)
        return own.addcmul(attend(v), beta)

    def matrix(self, weights: Tensor) -> Tensor:
        alpha, beta, gamma = map(self.over_heads, (self.alpha, self.beta, self.gamma))
        n = weights.shape[-1]
        return beta * weights + alpha * torch.eye(n, dtype=weights.dtype, device=weights.device) - gamma / n


@register
class ShapedAttention(Remedy[ShapedAttentionOptions]):
    key = "shaped_attention"
    title = "Shaped attention"
    paper = (
        "Noci et al., The Shaped Transformer: Attention Models in the Infinite Depth-and-Width Limit, NeurIPS 2023; "
        "He & Hofmann, Simplifying Transformer Blocks, ICLR 2024"
    )
    acts_on = "attention"
    Options = ShapedAttentionOptions
    parameters = "alpha, beta, gamma (heads)"
    departures = (
        "The equations are from a summary of the papers, not from their text. Noci et al. fix the three factors at 1 "
        "and widen the temperature of the softmax with the width of the host, so that its maps start nearly uniform; "
        "He & Hofmann learn the factors and start from query weights of zero for the same reason. Here the factors are "
        "learned, and the scores are those of the host in both starts: with start=paper a pretrained host is changed, "
        "and a new one has nearly uniform maps without further help."
    )

    def exact(self, options: ShapedAttentionOptions) -> bool:
        return options.start == "identity"

    def place(self, block: Block, anatomy: Anatomy, options: ShapedAttentionOptions) -> list[Placement]:
        attention = square_attention(block, "the identity cannot be added to its map")
        return [Placement(attention.core, ShapedMap(attention, options.start))]

    def flops(self, block: Block, anatomy: Anatomy, options: ShapedAttentionOptions) -> int:
        a = block.attention()
        return 5 * a.windows * a.heads * a.queries * a.value_channels

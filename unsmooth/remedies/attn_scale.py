"""AttnScale (Wang et al., Anti-Oversmoothing, ICLR 2022, Eq. 7–9).

    Â = J + (1+ω)(A − J),   J = 11ᵀ/n,   one ω per layer and head, initialised to 0

J is the largest low-pass part of A (Lemma 8). Negative entries of Â make band-pass and high-pass filters possible.

It is linear in A, so the map is not computed and fused attention stays on:

    ÂV = (1+ω)·AV − ω·mean_tokens(V)

n counts every key: the class token, and in Swin the keys that the shift mask hides, which then receive −ω/n, as in the
authors' code. In CaiT it acts after the talking-heads mix and not on class attention, as in their code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.bands import is_small
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import HeadPatch, NoOptions, Placement, Remedy, register, token_attention
from unsmooth.seam.intercept import Attend


class ScaledMap(HeadPatch):
    """Gain 1+ω on an attention map without its mean."""

    def __init__(self, attention: Attention):
        super().__init__(attention)
        self.omega = nn.Parameter(torch.zeros(attention.heads))

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        omega, out = self.over_heads(self.omega), attend(v)
        if is_small(v):  # fewer operations, one pass more
            return out.addcmul(out.sub(v.sum(dim=-2, keepdim=True), alpha=1 / v.shape[-2]), omega)
        return (-omega * v.mean(dim=-2, keepdim=True)).addcmul(out, 1 + omega)

    def matrix(self, weights: Tensor) -> Tensor:
        omega = self.over_heads(self.omega)
        return (1 + omega) * weights - omega / weights.shape[-1]


@register
class AttnScale(Remedy[NoOptions]):
    key = "attn_scale"
    title = "AttnScale"
    paper = (
        "Wang et al., Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain Analysis: From Theory to "
        "Practice, ICLR 2022"
    )
    acts_on = "attention"
    parameters = "omega (heads)"
    departures = (
        "With attention dropout the paper drops entries of Â; here entries of A are dropped, so that the fused kernel "
        "stays on. Padding that a host masks out is part of the mean."
    )

    def exact(self, options: NoOptions) -> bool:
        return True

    def place(self, block: Block, anatomy: Anatomy, options: NoOptions) -> list[Placement]:
        attention = token_attention(block)
        return [Placement(attention.core, ScaledMap(attention))]

    def flops(self, block: Block, anatomy: Anatomy, options: NoOptions) -> int:
        attention = block.attention()
        width = attention.heads * attention.head_channels * attention.windows
        return width * (attention.keys + 2 * attention.queries)

"""Centred attention (Ali et al., Centered Self-Attention Layers, 2023).

    A' = A − γJ,   J = 11ᵀ/n,   one γ per layer and head, initialised to 0

The rows of A sum to 1, so products of maps tend to a map of equal rows. With γ = 1 the rows of A' sum to 0: the part
that all products share is gone. It is linear in A, so the map is not computed and fused attention stays on:

    A'V = AV − γ·mean_tokens(V)

The mean is over every key: the class token, and in Swin all tokens of a window, also those that the shift mask hides.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.bands import sum_and_factor
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import HeadPatch, Placement, Remedy, register, token_attention
from unsmooth.seam.intercept import Attend
from unsmooth.utils.options import option, options


@options
class CentredAttentionOptions:
    start: Literal["identity", "paper"] = option(
        "γ at the start: 0 leaves a pretrained host unchanged, 1 is the paper's", default="identity"
    )


class CentredMap(HeadPatch):
    """An attention map minus a learned multiple of the uniform map."""

    def __init__(self, attention: Attention, start: str):
        super().__init__(attention)
        self.gamma = nn.Parameter(torch.full((attention.heads,), 1.0 if start == "paper" else 0.0))

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        total, factor = sum_and_factor(v, (-2,))
        return attend(v).addcmul(total, self.over_heads(self.gamma), value=-factor)

    def matrix(self, weights: Tensor) -> Tensor:
        return weights - self.over_heads(self.gamma) / weights.shape[-1]


@register
class CentredAttention(Remedy[CentredAttentionOptions]):
    key = "centred_attention"
    title = "Centred attention"
    paper = "Ali, Galanti & Wolf, Centered Self-Attention Layers, 2023"
    acts_on = "attention"
    Options = CentredAttentionOptions
    parameters = "gamma (heads)"
    departures = (
        "The equation is from a summary of the paper, not from its text. The paper subtracts the whole uniform map; "
        "here its share γ is learned, and starts from 0 so that a pretrained host is unchanged. Padding that a host "
        "masks out is part of the mean."
    )

    def exact(self, options: CentredAttentionOptions) -> bool:
        return options.start == "identity"

    def place(self, block: Block, anatomy: Anatomy, options: CentredAttentionOptions) -> list[Placement]:
        attention = token_attention(block)
        return [Placement(attention.core, CentredMap(attention, options.start))]

    def flops(self, block: Block, anatomy: Anatomy, options: CentredAttentionOptions) -> int:
        a = block.attention()
        return a.windows * a.heads * (a.keys + a.queries) * a.value_channels

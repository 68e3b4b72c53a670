"""Exclusive attention (Zhai, Exclusive Self Attention, 2026).

    z_i = y_i − g·⟨y_i, v̂_i⟩ v̂_i,   v̂_i = v_i/‖v_i‖,   one g per layer and head, initialised to 0

y_i is the output of a head for token i and v_i the token's own value. With g = 1 attention adds only what is orthogonal
to the token's own value: what the token already has passes by the skip. Each token is treated by itself, so class
token, windows and masks need no care. It needs the same tokens as queries and keys, so it does not fit attention with
pooled keys. The map stays that of the host: the change is in the channels, not over tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import OutputPatch, Placement, Remedy, register, square_attention
from unsmooth.seam.intercept import Attend
from unsmooth.utils.options import option, options


@options
class ExclusiveAttentionOptions:
    start: Literal["identity", "paper"] = option(
        "g at the start: 0 leaves a pretrained host unchanged, 1 is the paper's", default="identity"
    )


class WithoutOwnValue(OutputPatch):
    """The output of attention minus a learned share of its component along the token's own value."""

    direct = True

    def __init__(self, attention: Attention, start: str):
        super().__init__(attention)
        self.g = nn.Parameter(torch.full((attention.heads,), 1.0 if start == "paper" else 0.0))

    def output(self, attend: Attend, v: Tensor, x: Tensor | None) -> Tensor:
        y = attend(v)
        squared = v.square().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
        share = (y * v).sum(dim=-1, keepdim=True) / squared
        return y - self.over_heads(self.g) * share * v


@register
class ExclusiveAttention(Remedy[ExclusiveAttentionOptions]):
    key = "exclusive_attention"
    title = "Exclusive attention"
    paper = "Zhai, Exclusive Self Attention, 2026"
    acts_on = "attention output"
    Options = ExclusiveAttentionOptions
    parameters = "g (heads)"
    departures = (
        "The equation is from a summary of the paper, not from its text. The paper removes the whole component, on "
        "language models; here its share g is learned, and starts from 0 so that a pretrained host is unchanged."
    )

    def exact(self, options: ExclusiveAttentionOptions) -> bool:
        return options.start == "identity"

    def place(self, block: Block, anatomy: Anatomy, options: ExclusiveAttentionOptions) -> list[Placement]:
        attention = square_attention(block, "a query has no value of its own")
        return [Placement(attention.core, WithoutOwnValue(attention, options.start))]

    def flops(self, block: Block, anatomy: Anatomy, options: ExclusiveAttentionOptions) -> int:
        a = block.attention()
        return 6 * a.windows * a.heads * a.queries * a.value_channels

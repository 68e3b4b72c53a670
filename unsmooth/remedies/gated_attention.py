"""Gated attention (Qiu et al., Gated Attention for Large Language Models, NeurIPS 2025).

    y'_i = y_i ⊙ 2σ(W_g x_i),   W_g initialised to 0

y_i is the output of the heads for token i, before the output projection, and x_i the token that the attention reads.
The gate is per channel (`element`) or one per head (`head`). A gate near 0 lets a head add nothing to a token, which
softmax cannot: its rows sum to 1, so a head with nothing to say attends to a sink. The gate is also the only
nonlinearity between the value and output projections. Each token is treated by itself, so class token, windows and
masks need no care. The map stays that of the host.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import OutputPatch, Placement, Remedy, register, token_attention
from unsmooth.seam.intercept import Attend
from unsmooth.utils.options import option, options


@options
class GatedAttentionOptions:
    gate: Literal["element", "head"] = option("one gate per channel, or one per head", default="element")


class OutputGate(OutputPatch):
    """The output of attention times a sigmoid gate that reads the same tokens."""

    reads_tokens = True

    def __init__(self, attention: Attention, gate: str):
        super().__init__(attention)
        self.heads, self.head_axis = attention.heads, attention.head_axis
        width = attention.value_channels if gate == "element" else 1
        self.weight = nn.Parameter(torch.zeros(attention.heads * width, attention.inputs))

    def output(self, attend: Attend, v: Tensor, x: Tensor | None) -> Tensor:
        if x is None:
            raise RuntimeError(
                "unsmooth: gated_attention reads the input of the first linear layer, and this attention ran none, as "
                "after quantization. Quantize other layers only."
            )
        y = attend(v)
        tokens = y.movedim(self.head_axis, -2).shape[:-2]
        logits = F.linear(x, self.weight).reshape(*tokens, self.heads, -1).movedim(-2, self.head_axis)
        return y * (2 * torch.sigmoid(logits))


@register
class GatedAttention(Remedy[GatedAttentionOptions]):
    key = "gated_attention"
    title = "Gated attention"
    paper = (
        "Qiu et al., Gated Attention for Large Language Models: Non-linearity, Sparsity, and Attention-Sink-Free, "
        "NeurIPS 2025"
    )
    acts_on = "attention output"
    Options = GatedAttentionOptions
    parameters = "weight (channels × channels; gate=head: heads × channels)"
    departures = (
        "The equation is from a summary of the paper, not from its text. The paper's gate has no factor 2 and starts "
        "from random weights; 2σ(0) = 1 leaves a pretrained host unchanged. The paper studies language models."
    )

    def exact(self, options: GatedAttentionOptions) -> bool:
        return True

    def place(self, block: Block, anatomy: Anatomy, options: GatedAttentionOptions) -> list[Placement]:
        attention = token_attention(block)
        if not attention.inputs:
            raise NotApplicable("its attention reads no tokens through a linear layer, one per query")
        return [Placement(attention.core, OutputGate(attention, options.gate))]

    def flops(self, block: Block, anatomy: Anatomy, options: GatedAttentionOptions) -> int:
        a = block.attention()
        gates = a.heads * (a.value_channels if options.gate == "element" else 1)
        # The product, the sigmoid and the factor 2 of each gate; then each output times its gate.
        per_token = gates * (2 * a.inputs + 2) + a.heads * a.value_channels
        return a.windows * a.queries * per_token

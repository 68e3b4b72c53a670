"""Logistic attention (Wang et al., Anti-Oversmoothing, ICLR 2022, appendix D.3, Eq. 68; Veličković et al., ICLR 2018).

    P_ij = LeakyReLU(⟨u_q, q_i⟩ + ⟨u_k, k_j⟩ + b)

with u_q, u_k (head channels) and b per head. Eq. 68 has no LeakyReLU: that is `slope=1`. Then ⟨u_q, q_i⟩ and b are
constant in each row and cancel in the softmax, so all rows of the map are equal, and attention adds the same token
everywhere. The default slope, 0.2, is that of graph attention. For tokens of norm at most γ,
max|P| ≤ (‖u_K‖+‖u_Q‖)γ + |b| with both (D.3 prints b, which needs b ≥ 0), where u_Q = W_Q u_q and u_K = W_K u_k, and b
includes the biases of q and k.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import Placement, Remedy, ScorePatch, dot_product_attention, other_scores, register
from unsmooth.utils.options import option, options


@options
class LogisticAttentionOptions:
    slope: float = option(
        "slope of LeakyReLU below zero; 1: Eq. 68 as printed, with equal rows", default=0.2, low=0.0, high=1.0
    )


class AdditiveScores(ScorePatch):
    """LeakyReLU of one score per query plus one score per key."""

    def __init__(self, attention: Attention, slope: float):
        super().__init__(attention)
        self.slope = slope
        heads, channels = attention.heads, attention.head_channels
        self.u_q = nn.Parameter(torch.empty(heads, channels))
        self.u_k = nn.Parameter(torch.empty(heads, channels))
        self.b = nn.Parameter(torch.zeros(heads))
        self.trailing = -attention.head_axis - 3  # axes between the heads and the tokens
        nn.init.uniform_(self.u_q, -(channels**-0.5), channels**-0.5)
        nn.init.uniform_(self.u_k, -(channels**-0.5), channels**-0.5)

    def over_heads(self, u: Tensor) -> Tensor:
        return u.view(u.shape[0], *(1,) * (self.trailing + 1), u.shape[1])

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        queries = (q * self.over_heads(self.u_q)).sum(-1, keepdim=True)
        keys = (k * self.over_heads(self.u_k)).sum(-1).unsqueeze(-2)
        bias = self.b.view(-1, *(1,) * (self.trailing + 2))
        return F.leaky_relu(queries + keys + bias, self.slope)


@register
class LogisticAttention(Remedy[LogisticAttentionOptions]):
    key = "logistic_attention"
    title = "Logistic attention"
    paper = (
        "Wang et al., Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain Analysis: From Theory to "
        "Practice, ICLR 2022, appendix D.3; Veličković et al., Graph Attention Networks, ICLR 2018"
    )
    acts_on = "attention scores"
    Options = LogisticAttentionOptions
    parameters = "u_q, u_k (heads × head channels), b (heads)"
    conflicts = other_scores("logistic_attention")
    fused = "no: explicit map"
    departures = (
        "Eq. 68 has no LeakyReLU; `slope=1` is the printed form, whose rows are all equal, because the softmax cancels "
        "the query's term. The default slope, 0.2, is that of graph attention; the bound of D.3 holds for it too. The "
        "scores read q and k of the host, which are affine in its tokens, so u_Q = W_Q u_q and u_K = W_K u_k."
    )

    def place(self, block: Block, anatomy: Anatomy, options: LogisticAttentionOptions) -> list[Placement]:
        attention = dot_product_attention(block)
        return [Placement(attention.core, AdditiveScores(attention, options.slope))]

    def flops(self, block: Block, anatomy: Anatomy, options: LogisticAttentionOptions) -> int:
        a = block.attention()
        dots = 2 * (a.queries + a.keys) * a.head_channels
        product = 2 * a.queries * a.keys * a.head_channels  # saved: no product of queries and keys
        return a.windows * a.heads * (dots + 3 * a.queries * a.keys - product)

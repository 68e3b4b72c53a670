"""Logistic attention (Wang et al., Anti-Oversmoothing in Deep Vision Transformers, ICLR 2022, appendix D.3, Eq. 68).

    P_ij = LeakyReLU(⟨u_q, q_i⟩ + ⟨u_k, k_j⟩ + b)

with u_q, u_k (head channels) and b per head; max|P| ≤ (‖u_K‖+‖u_Q‖)γ + b for tokens of norm at most γ.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import NoOptions, Placement, Remedy, ScorePatch, dot_product_attention, register

SLOPE = 0.2


class AdditiveScores(ScorePatch):
    """LeakyReLU of one score per query plus one score per key."""

    def __init__(self, attention: Attention):
        super().__init__(attention)
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
        return F.leaky_relu(queries + keys + bias, SLOPE)


@register
class LogisticAttention(Remedy[NoOptions]):
    key = "logistic_attention"
    title = "Logistic attention"
    paper = "Wang et al., Anti-Oversmoothing in Deep Vision Transformers, ICLR 2022, appendix D.3"
    acts_on = "attention scores"
    parameters = "u_q, u_k (heads × head channels), b (heads)"
    conflicts = ("adder_attention", "adder", "l2_attention")
    fused = "no: explicit map"
    departures = (
        "The paper prints a bound for a score that is affine in the tokens of query and key. The softmax cancels the "
        "query's term of such a score, which is constant per row: all rows would be equal. We apply LeakyReLU to the "
        "score (slope 0.2, as in graph attention), for which the bound still holds. It reads q and k, not the raw "
        "tokens."
    )

    def place(self, block: Block, anatomy: Anatomy, options: NoOptions) -> list[Placement]:
        attention = dot_product_attention(block)
        return [Placement(attention.core, AdditiveScores(attention))]

    def flops(self, block: Block, anatomy: Anatomy, options: NoOptions) -> int:
        a = block.attention()
        dots = 2 * (a.queries + a.keys) * a.head_channels
        product = 2 * a.queries * a.keys * a.head_channels  # saved: no product of queries and keys
        return a.windows * a.heads * (dots + 3 * a.queries * a.keys - product)

"""Graph-filter attention (Choi et al., Graph Convolutions Enrich the Self-Attention in Transformers!, NeurIPS 2024).

    A' = w₀I + w₁A + w_K·A^K,   A^K ≈ A + (K − 1)(A² − A),   one w₀, w₁ and w_K per layer and head

The map is the adjacency matrix of a graph of tokens, and A' a polynomial graph filter, which can pass high frequencies
where A alone is low-pass. The power A^K is extrapolated from A and A² (a first-order Taylor step), so that it costs one
more product. With w = (0, 1, 0) a pretrained host is unchanged. A' is a polynomial in A, so the map is not computed:
A(AV) is a second fused call with the output of the first as values.

It needs the same tokens as queries and keys, so it does not fit attention with pooled keys. In Swin the power is taken
within each window, after its mask.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import HeadPatch, Placement, Remedy, register, square_attention
from unsmooth.seam.intercept import Attend
from unsmooth.utils.options import option, options


@options
class GraphFilterOptions:
    order: int = option("order K of the filter", default=3, low=2)


class FilteredMap(HeadPatch):
    """A polynomial in an attention map: the identity, the map and its extrapolated K-th power."""

    def __init__(self, attention: Attention, order: int):
        super().__init__(attention)
        self.order = order
        self.w_0 = nn.Parameter(torch.zeros(attention.heads))
        self.w_1 = nn.Parameter(torch.ones(attention.heads))
        self.w_k = nn.Parameter(torch.zeros(attention.heads))

    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The factors of I, A and A²: w₀, w₁ + w_K(2 − K) and w_K(K − 1)."""
        w_0, w_1, w_k = map(self.over_heads, (self.w_0, self.w_1, self.w_k))
        return w_0, w_1 + (2 - self.order) * w_k, (self.order - 1) * w_k

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        identity, once, twice = self.factors()
        y = attend(v)
        return (identity * v).addcmul(y, once).addcmul(attend(y), twice)

    def matrix(self, weights: Tensor) -> Tensor:
        identity, once, twice = self.factors()
        eye = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
        return identity * eye + once * weights + twice * (weights @ weights)


@register
class GraphFilter(Remedy[GraphFilterOptions]):
    key = "graph_filter"
    title = "Graph-filter attention (GFSA)"
    paper = "Choi et al., Graph Convolutions Enrich the Self-Attention in Transformers!, NeurIPS 2024"
    acts_on = "attention"
    Options = GraphFilterOptions
    parameters = "w_0, w_1, w_k (heads)"
    fused = "yes, with two calls"
    departures = (
        "The equation is from a summary of the paper, not from its text. With attention dropout the paper drops "
        "entries of A'; here each of the two fused calls drops entries of A by itself."
    )

    def exact(self, options: GraphFilterOptions) -> bool:
        return True

    def place(self, block: Block, anatomy: Anatomy, options: GraphFilterOptions) -> list[Placement]:
        attention = square_attention(block, "its map has no powers")
        return [Placement(attention.core, FilteredMap(attention, options.order))]

    def flops(self, block: Block, anatomy: Anatomy, options: GraphFilterOptions) -> int:
        a = block.attention()
        # The second fused call computes the scores again.
        second = 2 * a.queries * a.keys * (a.head_channels + a.value_channels)
        return a.windows * a.heads * (second + 5 * a.queries * a.value_channels)

"""Re-attention (Zhou et al., DeepViT: Towards Deeper Vision Transformer, 2021).

    A'_g = Σ_h Θ_gh A_h,   Θ ∈ R^{H×H}, initialised to the identity

The maps of different heads differ more than those of different blocks, so new maps are mixed from all heads. The map
is needed itself, so no fused kernel is used. In Swin it acts after the shift mask; in CaiT after the host's own mix.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import MapPatch, NoOptions, Placement, Remedy, register, token_attention


def mix_heads(weights: Tensor, theta: Tensor, head_axis: int) -> Tensor:
    """Maps or scores mixed over their heads: out_g = Σ_h Θ_gh in_h."""
    return F.linear(weights.movedim(head_axis, -1), theta.to(weights.dtype)).movedim(-1, head_axis)


class MixedMaps(MapPatch):
    """Attention maps mixed over heads."""

    def __init__(self, attention: Attention):
        super().__init__(attention)
        self.head_axis = attention.head_axis
        self.theta = nn.Parameter(torch.eye(attention.heads))

    def matrix(self, weights: Tensor) -> Tensor:
        return mix_heads(weights, self.theta, self.head_axis)


@register
class ReAttention(Remedy[NoOptions]):
    key = "re_attention"
    title = "Re-attention"
    paper = "Zhou et al., DeepViT: Towards Deeper Vision Transformer, 2021"
    acts_on = "attention"
    parameters = "theta (heads × heads)"
    fused = "no: explicit map"
    departures = (
        "The equation is from a summary of the paper, not from its text. DeepViT normalises the mixed maps with batch "
        "norm over heads and starts Θ at random. Here there is no norm and Θ starts from the identity, so that a "
        "pretrained host is unchanged. The hosts `deepvit_*` have the norm."
    )

    def exact(self, options: NoOptions) -> bool:
        return True

    def place(self, block: Block, anatomy: Anatomy, options: NoOptions) -> list[Placement]:
        attention = token_attention(block)
        return [Placement(attention.core, MixedMaps(attention))]

    def flops(self, block: Block, anatomy: Anatomy, options: NoOptions) -> int:
        a = block.attention()
        return 2 * a.windows * a.heads * a.heads * a.queries * a.keys

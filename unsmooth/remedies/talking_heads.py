"""Talking heads (Shazeer et al., Talking-Heads Attention, 2020).

    P'_g = Σ_h L_gh P_h,   A = softmax(P'),   A'_g = Σ_h M_gh A_h,   L, M ∈ R^{H×H}, initialised to the identity

Heads exchange their scores before the softmax and their maps after it; CaiT has both. Scores and map are needed
themselves, so no fused kernel is used. The scores are mixed before biases and masks are added: a mask stays a mask. In
CaiT it acts before the host's own mix of scores and after its own mix of maps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import MapPatch, NoOptions, Placement, Remedy, dot_product_attention, other_scores, register
from unsmooth.remedies.re_attention import mix_heads
from unsmooth.seam.intercept import AttentionCall, SdpaOptions, softmax_call


class TalkingMaps(MapPatch):
    """Scores and maps mixed over heads."""

    rescores = True

    def __init__(self, attention: Attention):
        super().__init__(attention)
        self.scores_product, self.head_axis = attention.product, attention.head_axis
        self.logits = nn.Parameter(torch.eye(attention.heads))
        self.maps = nn.Parameter(torch.eye(attention.heads))

    def explicit_scores(self, q: Tensor, k: Tensor) -> Tensor:
        return mix_heads(q @ k.transpose(-2, -1), self.logits, self.head_axis)

    def rescore(self, call: AttentionCall, options: SdpaOptions) -> AttentionCall:
        v, scores = call.v, call.scores
        if options["enable_gqa"] and call.q is not None:
            v = v.repeat_interleave(call.q.shape[-3] // v.shape[-3], dim=-3)
        return softmax_call(
            lambda: mix_heads(scores(), self.logits, self.head_axis),
            v, options["attn_mask"], options["dropout_p"], options["is_causal"],
        )  # fmt: skip

    def matrix(self, weights: Tensor) -> Tensor:
        return mix_heads(weights, self.maps, self.head_axis)


@register
class TalkingHeads(Remedy[NoOptions]):
    key = "talking_heads"
    title = "Talking heads"
    paper = (
        "Shazeer et al., Talking-Heads Attention, 2020; Touvron et al., Going deeper with Image Transformers, ICCV 2021"
    )
    acts_on = "attention scores and attention"
    parameters = "logits, maps (heads × heads)"
    conflicts = other_scores("talking_heads")
    fused = "no: explicit map"
    departures = (
        "The equations are from a summary of the paper, not from its text. The paper starts from random mixes; the "
        "identity leaves a pretrained host unchanged. CaiT's mixes have biases, these have none."
    )

    def exact(self, options: NoOptions) -> bool:
        return True

    def place(self, block: Block, anatomy: Anatomy, options: NoOptions) -> list[Placement]:
        attention = dot_product_attention(block)
        return [Placement(attention.core, TalkingMaps(attention))]

    def flops(self, block: Block, anatomy: Anatomy, options: NoOptions) -> int:
        a = block.attention()
        return 4 * a.windows * a.heads * a.heads * a.queries * a.keys

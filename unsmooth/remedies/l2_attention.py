"""L2 attention (Wang et al., Anti-Oversmoothing, ICLR 2022, appendix D.3, Eq. 69; Kim et al., ICML 2021).

    P_ij = −‖q_i − k_j‖² / τ

The term −‖q‖²/τ of its expansion is constant per row and cancels in the softmax, so the fused kernel stays on, with
scale 2/τ and a bias −‖k_j‖²/τ on the keys. Each head has its own map, as before. Default: τ = √(head channels).
For tokens of norm at most γ, max|P| ≤ (‖W_K‖₂+‖W_Q‖₂)²γ²/τ (D.3), so Theorem 3 applies.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import Placement, Remedy, ScorePatch, dot_product_attention, other_scores, register
from unsmooth.seam.intercept import AttentionCall, SdpaOptions, add_mask, fused_call
from unsmooth.utils.options import option, options


@options
class L2AttentionOptions:
    tau: float | None = option("temperature; default: the root of the channels per head", default=None, above=0.0)


class DistanceScores(ScorePatch):
    """Negative squared distances of queries and keys as scores."""

    def __init__(self, attention: Attention, tau: float | None):
        super().__init__(attention)
        self.tau = attention.head_channels**0.5 if tau is None else tau

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.key_bias(k) - q.square().sum(-1, keepdim=True) / self.tau + q @ k.transpose(-2, -1) * (2 / self.tau)

    def key_bias(self, k: Tensor) -> Tensor:
        return -k.square().sum(-1).unsqueeze(-2) / self.tau

    def rescore(self, call: AttentionCall, options: SdpaOptions) -> AttentionCall:
        q, k = call.q, call.k
        assert q is not None and k is not None
        if options["enable_gqa"]:
            return super().rescore(call, options)
        bias = self.key_bias(k).expand(*q.shape[:-1], k.shape[-2])
        mask = add_mask(bias, options["attn_mask"], options["is_causal"])
        return fused_call(
            q, k, call.v, {**options, "attn_mask": mask.to(q.dtype), "is_causal": False, "scale": 2 / self.tau}
        )


@register
class L2Attention(Remedy[L2AttentionOptions]):
    key = "l2_attention"
    title = "L2 attention"
    paper = (
        "Wang et al., Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain Analysis: From Theory to "
        "Practice, ICLR 2022, appendix D.3; Kim et al., The Lipschitz Constant of Self-Attention, ICML 2021"
    )
    acts_on = "attention scores"
    Options = L2AttentionOptions
    conflicts = other_scores("l2_attention")
    departures = (
        "Kim et al. tie the query and key weights; here the host keeps its two weights, as in the bound of Wang et al."
    )

    def place(self, block: Block, anatomy: Anatomy, options: L2AttentionOptions) -> list[Placement]:
        attention = dot_product_attention(block)
        return [Placement(attention.core, DistanceScores(attention, options.tau))]

    def flops(self, block: Block, anatomy: Anatomy, options: L2AttentionOptions) -> int:
        a = block.attention()
        return a.windows * a.heads * a.keys * (2 * a.head_channels + a.queries)

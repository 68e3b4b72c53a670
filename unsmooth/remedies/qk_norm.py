"""QK-norm (Dehghani et al., Scaling Vision Transformers to 22 Billion Parameters, ICML 2023; Henry et al., 2020).

    P = norm(q) norm(k)ᵀ / √(head channels),   norm over the channels of each head, with learned gains

Queries and keys of bounded length bound the scores: attention cannot become one-hot because the weights grow. The
fused kernel stays on. There is no start that leaves a pretrained host unchanged: fine-tune, or train from scratch.
Masks and biases stay as they are.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.remedies.base import Placement, Remedy, ScorePatch, dot_product_attention, other_scores, register
from unsmooth.seam.intercept import AttentionCall, SdpaOptions, dot_scores, fused_call
from unsmooth.utils.options import option, options


@options
class QkNormOptions:
    norm: Literal["layer", "rms"] = option("layer norm, or root mean square norm", default="layer")


class NormedScores(ScorePatch):
    """The scaled dot product of normalised queries and keys."""

    def __init__(self, attention: Attention, norm: str):
        super().__init__(attention)
        self.norm = norm
        self.gain_q = nn.Parameter(torch.ones(attention.head_channels))
        self.gain_k = nn.Parameter(torch.ones(attention.head_channels))

    def normed(self, x: Tensor, gain: Tensor) -> Tensor:
        function = F.layer_norm if self.norm == "layer" else F.rms_norm
        return function(x, gain.shape, gain, eps=1e-6).to(x.dtype)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return dot_scores(self.normed(q, self.gain_q), self.normed(k, self.gain_k), None)

    def rescore(self, call: AttentionCall, options: SdpaOptions) -> AttentionCall:
        assert call.q is not None and call.k is not None
        return fused_call(self.normed(call.q, self.gain_q), self.normed(call.k, self.gain_k), call.v, options)


@register
class QkNorm(Remedy[QkNormOptions]):
    key = "qk_norm"
    title = "QK-norm"
    paper = (
        "Dehghani et al., Scaling Vision Transformers to 22 Billion Parameters, ICML 2023; Henry et al., Query-Key "
        "Normalization for Transformers, EMNLP Findings 2020"
    )
    acts_on = "attention scores"
    Options = QkNormOptions
    parameters = "gain_q, gain_k (head channels)"
    conflicts = other_scores("qk_norm")
    departures = (
        "The equation is from a summary of the papers, not from their text. Henry et al. divide by the length and "
        "learn one scale; this is the form of Dehghani et al., one gain per channel and no bias. It acts after a "
        "rotary position embedding of the host, where others normalise before it."
    )

    def place(self, block: Block, anatomy: Anatomy, options: QkNormOptions) -> list[Placement]:
        attention = dot_product_attention(block)
        return [Placement(attention.core, NormedScores(attention, options.norm))]

    def flops(self, block: Block, anatomy: Anatomy, options: QkNormOptions) -> int:
        a = block.attention()
        return 7 * a.windows * a.heads * (a.queries + a.keys) * a.head_channels

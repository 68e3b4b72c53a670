"""ContraNorm (Guo et al., ContraNorm: A Contrastive Learning Perspective on Oversmoothing and Beyond, ICLR 2023).

    LN(x − s ⊙ softmax(x̂x̂ᵀ/τ) x),   x̂_i = x_i/‖x_i‖,   s ∈ R^d, initialised to 0

LN is the norm that a branch of the host reads its tokens from. Each token moves away from the tokens that it resembles:
a step down the gradient of a uniformity loss. The residual stream itself is not changed. All tokens take part, the
class token too, and in Swin those of the whole feature map. The product is computed by the fused attention kernel.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.hosts.token_layout import as_tokens
from unsmooth.remedies.base import Placement, Remedy, TokenHook, branch_names, register
from unsmooth.utils.options import option, options


@options
class ContraNormOptions:
    branch: Literal["attn", "mlp", "both"] = option("branch whose norm it acts on", default="attn")
    tau: float = option("temperature τ of the similarities", default=1.0, above=0.0)
    scale: float = option("start of s; 0: outputs stay the same", default=0.0)


class Repulsion(TokenHook):
    """Tokens minus a learned share of the tokens that resemble them."""

    def __init__(self, channels: int, tau: float, scale: float):
        super().__init__()
        self.channels, self.tau = channels, tau
        self.s = nn.Parameter(torch.full((channels,), scale))

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        tokens = as_tokens(x, self.channels)
        unit = F.normalize(tokens, dim=-1).unsqueeze(1)  # one head
        alike = F.scaled_dot_product_attention(unit, unit, tokens.unsqueeze(1), scale=1 / self.tau)
        return x - self.s * alike.reshape(x.shape)


@register
class ContraNorm(Remedy[ContraNormOptions]):
    key = "contra_norm"
    title = "ContraNorm"
    paper = "Guo et al., ContraNorm: A Contrastive Learning Perspective on Oversmoothing and Beyond, ICLR 2023"
    acts_on = "input of a norm"
    Options = ContraNormOptions
    parameters = "s (channels) per branch"
    departures = (
        "The equation is from a summary of the paper, not from its text. The paper's s is one positive number (0.1 and "
        "more) that is not learned; the released code can also learn one per channel, as here. From s = 0 a pretrained "
        "host is unchanged. The paper adds a layer; here the host's own norm is its norm."
    )

    def exact(self, options: ContraNormOptions) -> bool:
        return options.scale == 0.0

    def place(self, block: Block, anatomy: Anatomy, options: ContraNormOptions) -> list[Placement]:
        placements = []
        for name in branch_names(options.branch):
            branch = block.branch(name)
            if branch.norm is None:
                raise NotApplicable(f"its {name} branch reads no tokens from a norm")
            hook = Repulsion(branch.channels, options.tau, options.scale)
            placements.append(Placement(HookPoint(branch.norm.module, "input"), hook, name))
        return placements

    def flops(self, block: Block, anatomy: Anatomy, options: ContraNormOptions) -> int:
        n, d = block.tokens, block.channels
        return len(branch_names(options.branch)) * (4 * n * n * d + 5 * n * d)

"""Specialised norms (Marouani et al., Revisiting [CLS] and Patch Token Interaction in Vision Transformers, ICLR 2026).

    LN'(x_i) = (x_i − mean)/std ⊙ w' + b'   for class, distillation and register tokens,   LN(x_i) for patch tokens

Class and patch tokens have different tasks and share every norm. With weights of their own, copied from the host's at
the start, a pretrained host is unchanged. The norms are those that attention and MLP read their tokens from. Hosts
without such tokens do not fit.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.hosts.token_layout import prefix_of
from unsmooth.remedies.base import FromHost, Placement, Remedy, TokenHook, branch_names, register
from unsmooth.utils.options import option, options


@options
class SpecializedNormOptions:
    branch: Literal["both", "attn", "mlp"] = option("branch whose norm is specialised", default="both")


class PrefixNorm(TokenHook, FromHost):
    """A norm of its own for the tokens before the patch tokens."""

    def __init__(self, channels: int, prefix: int):
        super().__init__()
        self.prefix, self.eps = prefix, 1e-6
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    @torch.no_grad()
    def start_from(self, host: nn.Module) -> None:
        assert isinstance(host, nn.LayerNorm)
        self.eps = host.eps
        for own, shared in ((self.weight, host.weight), (self.bias, host.bias)):
            if shared is not None:
                own.copy_(shared)

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        assert source is not None
        own = F.layer_norm(source[:, : self.prefix], self.weight.shape, self.weight, self.bias, self.eps)
        return torch.cat([own.to(x.dtype), x[:, self.prefix :]], dim=1)


@register
class SpecializedNorm(Remedy[SpecializedNormOptions]):
    key = "specialized_norm"
    title = "Specialised norms"
    paper = "Marouani et al., Revisiting [CLS] and Patch Token Interaction in Vision Transformers, ICLR 2026"
    acts_on = "norms"
    Options = SpecializedNormOptions
    parameters = "weight, bias (channels) per norm"
    departures = (
        "The paper is known from summaries, not from its text. It trains from scratch and also specialises early "
        "q, k and v projections and the layer scale; here the norms before attention and MLP are specialised, in a "
        "pretrained host. Register tokens are treated like the class token. The final norm is shared."
    )

    def exact(self, options: SpecializedNormOptions) -> bool:
        return True

    def place(self, block: Block, anatomy: Anatomy, options: SpecializedNormOptions) -> list[Placement]:
        placements = []
        for name in branch_names(options.branch):
            branch, prefix = block.branch(name), prefix_of(block, anatomy)
            if not prefix:
                raise NotApplicable("it has no class token or other tokens before the patch tokens")
            if branch.norm is None or not branch.norm.layer:
                raise NotApplicable(f"its {name} branch reads no tokens from a layer norm")
            point = HookPoint(branch.norm.module, "output")
            placements.append(Placement(point, PrefixNorm(branch.channels, prefix), name))
        return placements

    def flops(self, block: Block, anatomy: Anatomy, options: SpecializedNormOptions) -> int:
        return 7 * len(branch_names(options.branch)) * prefix_of(block, anatomy) * block.channels

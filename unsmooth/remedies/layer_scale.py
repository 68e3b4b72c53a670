"""LayerScale (Touvron et al., Going deeper with image transformers, ICCV 2021, Eq. 4).

    x' = x + γ ⊙ f(x),   γ ∈ R^d, one per branch

on the output f(x) of attention and of the MLP, before drop path and the residual sum. A small γ lets a deep host start
near the identity: the paper starts from 0.1 up to 18 blocks, 1e-5 up to 24 and 1e-6 beyond. With γ = 1 the outputs of a
pretrained host stay the same. Class token and windows are treated like any other token.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.bands import along_channels
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.remedies.base import BandGain, Placement, Remedy, branch_names, register
from unsmooth.utils.options import option, options


@options
class LayerScaleOptions:
    """Options of layer_scale."""

    branch: Literal["both", "attn", "mlp"] = option("branch", default="both")
    init: float = option("start of γ; 1: outputs stay the same", default=1.0)


class ChannelGain(BandGain):
    """A learned gain per channel, the same on the mean token and on the rest."""

    def __init__(self, channels: int, channels_last: bool, init: float):
        super().__init__(channels_last)
        self.gamma = nn.Parameter(torch.full((channels,), init))

    def gains(self) -> tuple[Tensor, Tensor]:
        return self.gamma, self.gamma

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        return x * along_channels(self.gamma, x, self.channels_last)


@register
class LayerScale(Remedy[LayerScaleOptions]):
    key = "layer_scale"
    title = "LayerScale"
    paper = "Touvron et al., Going deeper with Image Transformers, ICCV 2021"
    acts_on = "branch outputs"
    Options = LayerScaleOptions
    parameters = "γ (channels) per branch"
    departures = (
        "The default start of γ is 1, for pretrained hosts. From scratch, use the paper's init=0.1, 1e-5 or 1e-6. On a "
        "host with a layer scale of its own, both are multiplied."
    )

    def exact(self, options: LayerScaleOptions) -> bool:
        return options.init == 1.0

    def place(self, block: Block, anatomy: Anatomy, options: LayerScaleOptions) -> list[Placement]:
        placements = []
        for name in branch_names(options.branch):
            branch = block.branch(name)
            point = branch.hook_point("end")
            placements.append(Placement(point, ChannelGain(branch.channels, point.channels_last, options.init), name))
        return placements

    def flops(self, block: Block, anatomy: Anatomy, options: LayerScaleOptions) -> int:
        return sum(block.tokens * block.branch(name).channels for name in branch_names(options.branch))

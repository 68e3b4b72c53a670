"""FeatScale (Wang et al., Anti-Oversmoothing, ICLR 2022, Eq. 10–12).

    Y' = (1+s)·DC[Y] + (1+t)·HC[Y],   s, t ∈ R^d, initialised to 0

on the output Y of attention after its projection, before layer scale, drop path and the residual sum. The mean includes
the class token; in Swin it is over the whole feature map, not per window.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.bands import add_small_mean, along_channels, is_small
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.remedies.base import BandGain, NoOptions, Placement, Remedy, register


class LearnedBandGain(BandGain):
    """Learned gains, per channel, on the mean token and on the rest."""

    def __init__(self, channels: int, channels_last: bool):
        super().__init__(channels_last)
        self.s = nn.Parameter(torch.zeros(channels))
        self.t = nn.Parameter(torch.zeros(channels))

    def gains(self) -> tuple[Tensor, Tensor]:
        return 1 + self.s, 1 + self.t

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        if not is_small(x):
            return super().treat(x, source)
        s, t, last = self.s, self.t, self.channels_last
        rest = x.addcmul(x, along_channels(t, x, last))  # one operation fewer, one pass more
        return add_small_mean(rest, x, s - t, last)


@register
class FeatScale(Remedy[NoOptions]):
    key = "feat_scale"
    title = "FeatScale"
    paper = (
        "Wang et al., Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain Analysis: From Theory to "
        "Practice, ICLR 2022"
    )
    acts_on = "attention branch output"
    parameters = "s, t (channels)"
    departures = (
        "None from the paper. The authors' DeiT file applies 1+2s and 1+2t since a 2022 commit; we follow the printed "
        "equation, and `unsmooth import --doubled` reads their weights."
    )

    def exact(self, options: NoOptions) -> bool:
        return True

    def place(self, block: Block, anatomy: Anatomy, options: NoOptions) -> list[Placement]:
        branch = block.branch("attn")
        point = branch.hook_point("end")
        return [Placement(point, LearnedBandGain(branch.channels, point.channels_last), "attn")]

    def flops(self, block: Block, anatomy: Anatomy, options: NoOptions) -> int:
        return 3 * block.tokens * block.branch("attn").channels

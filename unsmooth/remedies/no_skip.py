"""The no-skip study of Always Skip Attention (Ji et al., ICCV 2025): a block without one of its skips.

    x + f(x)  →  f(x)

for the attention branch, the MLP branch or both, and for the token mixer of ConvMixer (`branch=attn`). An
ablation, not a fix: it shows what the skip is worth.
"""

from __future__ import annotations

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.remedies.base import Option, Options, Placement, Remedy, branches, register
from unsmooth.seam.patched import ResidualScale


@register
class NoSkip(Remedy):
    key = "no_skip"
    title = "No skip"
    paper = "Ji et al., Always Skip Attention, ICCV 2025"
    acts_on = "residual sum"
    options = {"branch": Option("attn", "which skip to drop", choices=("attn", "mlp", "both"))}
    departures = "None."

    def place(self, block: Block, anatomy: Anatomy, options: Options) -> list[Placement]:
        for which in branches(options):
            if block.residuals.count(which) != 1:
                raise NotApplicable(block.reasons.get(which, f"no single residual sum of its {which} branch was found"))
        return [Placement(block.name, ResidualScale(which, skip=0.0), which) for which in branches(options)]

    def flops(self, block: Block, anatomy: Anatomy, options: Options) -> int:
        return 0

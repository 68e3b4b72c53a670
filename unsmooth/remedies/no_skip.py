"""The no-skip study of Always Skip Attention (Ji et al., ICCV 2025): a block without one of its skips.

    x + f(x)  →  f(x)

for the attention branch, the MLP branch or both, and for the token mixer of ConvMixer (`branch=attn`), whose skip is
printed as Eq. 22. It is an ablation, not a fix: it shows the effect of the skip. By Proposition 4.2 the skip lowers the
condition number of attention (vital `condition_bound`). Without it a ViT loses accuracy and a ConvMixer does not
(Figure 6).
"""

from __future__ import annotations

from typing import Literal

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.remedies.base import Placement, Remedy, branch_names, register
from unsmooth.seam.residual_sums import ResidualScale
from unsmooth.utils.options import option, options


@options
class NoSkipOptions:
    branch: Literal["attn", "mlp", "both"] = option("branch whose skip is dropped", default="attn")


@register
class NoSkip(Remedy[NoSkipOptions]):
    key = "no_skip"
    title = "No skip"
    paper = "Ji et al., Always Skip Attention, ICCV 2025"
    acts_on = "residual sum"
    Options = NoSkipOptions
    departures = "None."

    def place(self, block: Block, anatomy: Anatomy, options: NoSkipOptions) -> list[Placement]:
        for branch in branch_names(options.branch):
            if block.residuals.count(branch) != 1:
                reason = f"its {branch} branch has {block.residuals.count(branch)} residual sums, not one"
                raise NotApplicable(block.reasons.get(branch, reason))
        return [
            Placement(block.name, ResidualScale(branch, skip=0.0), branch) for branch in branch_names(options.branch)
        ]

    def flops(self, block: Block, anatomy: Anatomy, options: NoSkipOptions) -> int:
        return 0

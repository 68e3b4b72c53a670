"""Orthogonal residual updates (Oh et al., Revisiting Residual Connections, NeurIPS 2025).

    x' = x + f − p·(⟨x, f⟩/(‖x‖² + ε))·x,   one p per branch, initialised to 0

x is a token of the residual stream and f what a branch adds to it. With p = 1 a branch adds only what is orthogonal to
the stream: new directions, and no change of the length along the old one. Each token is treated by itself, so class
token and windows need no care.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.remedies.base import Placement, Remedy, ResidualPatch, branch_names, register
from unsmooth.utils.options import option, options

EPSILON = 1e-6


@options
class OrthogonalResidualOptions:
    branch: Literal["both", "attn", "mlp"] = option("branch", default="both")
    start: Literal["identity", "paper"] = option(
        "p at the start: 0 leaves a pretrained host unchanged, 1 is the paper's", default="identity"
    )


class OrthogonalPart(ResidualPatch):
    """A branch minus a learned share of its component along the residual stream."""

    def __init__(self, channels: int, start: str):
        super().__init__()
        self.channels = channels
        self.p = nn.Parameter(torch.full((1,), 1.0 if start == "paper" else 0.0))  # FSDP2 shards no scalars

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        axis = -1 if x.shape[-1] == self.channels else 1  # channels last, or NCHW
        share = (x * branch).sum(axis, keepdim=True) / (x.square().sum(axis, keepdim=True) + EPSILON)
        return branch - self.p * share * x


@register
class OrthogonalResidual(Remedy[OrthogonalResidualOptions]):
    key = "orthogonal_residual"
    title = "Orthogonal residual updates"
    paper = (
        "Oh et al., Revisiting Residual Connections: Orthogonal Updates for Stable and Efficient Deep Networks, "
        "NeurIPS 2025"
    )
    acts_on = "residual sum"
    Options = OrthogonalResidualOptions
    parameters = "p (one per branch)"
    departures = (
        "The equation is from a summary of the paper and its released code. The paper removes the whole component; "
        "here its share p is learned, and starts from 0 so that a pretrained host is unchanged. Drop path and layer "
        "scale act before it, as they are part of the branch."
    )

    def exact(self, options: OrthogonalResidualOptions) -> bool:
        return options.start == "identity"

    def place(self, block: Block, anatomy: Anatomy, options: OrthogonalResidualOptions) -> list[Placement]:
        for name in branch_names(options.branch):
            count = block.residuals.count(name)
            if count != 1:
                raise NotApplicable(block.reasons.get(name, f"its {name} branch has {count} residual sums, not one"))
        return [
            Placement(block.name, OrthogonalPart(block.channels, options.start), name)
            for name in branch_names(options.branch)
        ]

    def flops(self, block: Block, anatomy: Anatomy, options: OrthogonalResidualOptions) -> int:
        return 6 * len(branch_names(options.branch)) * block.tokens * block.channels

"""Context Broadcasting (Hyeon-Woo et al., Scratching Visual Transformer's Back with Uniform Attention, ICCV 2023).

    plain    CB(x_i) = (x_i + mean_j x_j) / 2
    scaled   x_i + λ ⊙ mean_j x_j,   λ ∈ R^d, initialised to 0
    gate     x_i ⊙ (x_0 + 1),        x_0 the class token
    hybrid   x_i ⊙ x_0 + CB(x_i)

at the end of the MLP, before the residual sum; also before its first (front) or last (mid) linear layer, and likewise
in the attention branch. The mean includes the class token. For the plain kind, mid and end are the same function, with
the same gradients, if there is no dropout between them.

We count every addition and multiplication: 3 (plain), 2 (scaled, gate) and 5 (hybrid) per token and channel. Tables S5
and S6 count 1, 1 (gate) and 2 (hybrid): 0.9 M for ViT-S, 3.6 M at mid, twice that for the hybrid.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.bands import Gain, add_mean, mix
from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.remedies.base import BandGain, Placement, Remedy, TokenHook, branch_names, register
from unsmooth.utils.options import option, options


@options
class ContextBroadcastOptions:
    kind: Literal["plain", "scaled", "gate", "hybrid"] = option("form of the broadcast", default="plain")
    branch: Literal["mlp", "attn", "both"] = option("branch that it acts on", default="mlp")
    position: Literal["end", "mid", "front"] = option("position in the branch", default="end")


class Broadcast(BandGain):
    """The mean of the token and the mean token."""

    def gains(self) -> tuple[Gain, Gain]:
        return 1.0, 0.5


class ScaledBroadcast(BandGain):
    """The token plus λ times the mean token."""

    def __init__(self, channels: int, channels_last: bool):
        super().__init__(channels_last)
        self.lam = nn.Parameter(torch.zeros(channels))

    def gains(self) -> tuple[Gain, Gain]:
        return 1 + self.lam, 1.0

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        return add_mean(x, x, self.lam, self.channels_last)


class Gate(TokenHook):
    """Each token times (class token + 1)."""

    reads_source = False

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        return x * (x[:, :1] + 1)


class Hybrid(TokenHook):
    """Each token times the class token, plus the plain broadcast."""

    reads_source = False

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        return mix(x, 1.0, 0.5).addcmul(x, x[:, :1])


@register
class ContextBroadcast(Remedy[ContextBroadcastOptions]):
    key = "context_broadcast"
    title = "Context Broadcasting"
    paper = "Hyeon-Woo et al., Scratching Visual Transformer's Back with Uniform Attention, ICCV 2023"
    acts_on = "a branch"
    Options = ContextBroadcastOptions
    parameters = "scaled: lam (channels)"
    departures = (
        "The formula of the scaled form and its initial λ are not in the supplement: x + λ ⊙ mean is our reading, and "
        "λ = 0 leaves a pretrained host unchanged. The paper names positions for the MLP only; in the attention "
        "branch, front is before q, k, v, and mid before the projection."
    )

    def exact(self, options: ContextBroadcastOptions) -> bool:
        return options.kind == "scaled"

    def place(self, block: Block, anatomy: Anatomy, options: ContextBroadcastOptions) -> list[Placement]:
        return [self.place_in_branch(block, name, options) for name in branch_names(options.branch)]

    def place_in_branch(self, block: Block, name: str, options: ContextBroadcastOptions) -> Placement:
        branch = block.branch(name)
        point = branch.hook_point(options.position)
        kind = options.kind
        if kind in ("gate", "hybrid"):
            if not block.class_token:
                raise NotApplicable(
                    f"kind={kind} multiplies by the class token, which it does not have; use kind=plain"
                )
            return Placement(point, Gate() if kind == "gate" else Hybrid(), name)
        channels = branch.hidden if options.position == "mid" else branch.channels
        last = point.channels_last
        return Placement(point, ScaledBroadcast(channels, last) if kind == "scaled" else Broadcast(last), name)

    def flops(self, block: Block, anatomy: Anatomy, options: ContextBroadcastOptions) -> int:
        per_channel = {"plain": 3, "scaled": 2, "gate": 2, "hybrid": 5}[options.kind]
        branches = [block.branch(name) for name in branch_names(options.branch)]
        width = sum(branch.hidden if options.position == "mid" else branch.channels for branch in branches)
        return per_channel * block.tokens * width

"""Context Broadcasting (Hyeon-Woo et al., Scratching Visual Transformer's Back with Uniform Attention, ICCV 2023).

    plain    CB(x_i) = (x_i + mean_j x_j) / 2
    scaled   x_i + λ ⊙ mean_j x_j,   λ ∈ R^d, 0 at the start
    gate     x_i ⊙ (x_0 + 1),        x_0 the class token
    hybrid   x_i ⊙ x_0 + CB(x_i)

at the end of the MLP, before the residual sum; also in front of its first (front) or last (mid) linear layer,
and likewise in the attention branch. The class token is in the mean. Mid and end are the same function for
the plain kind when there is no dropout between them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.bands import Gain, mix
from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.remedies.base import BandGain, Option, Options, Placement, Remedy, TokenHook, branches, register


class Broadcast(BandGain):
    """Half of the token, half of the mean token."""

    def gains(self) -> tuple[Gain, Gain]:
        return 1.0, 0.5


class ScaledBroadcast(BandGain):
    """The token and λ times the mean token."""

    def __init__(self, channels: int, channels_last: bool):
        super().__init__(channels_last)
        self.lam = nn.Parameter(torch.zeros(channels))

    def gains(self) -> tuple[Gain, Gain]:
        return 1 + self.lam, 1.0


class Gate(TokenHook):
    """Each token times the class token plus one."""

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        return x * (x[:, :1] + 1)


class Hybrid(TokenHook):
    """Each token times the class token, plus its plain broadcast."""

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        return mix(x, 1.0, 0.5).addcmul(x, x[:, :1])


@register
class ContextBroadcast(Remedy):
    key = "context_broadcast"
    title = "Context Broadcasting"
    paper = "Hyeon-Woo et al., Scratching Visual Transformer's Back with Uniform Attention, ICCV 2023"
    acts_on = "a branch"
    options = {
        "kind": Option("plain", "which form", choices=("plain", "scaled", "gate", "hybrid")),
        "branch": Option("mlp", "on which branch", choices=("mlp", "attn", "both")),
        "position": Option("end", "where in the branch", choices=("end", "mid", "front")),
    }
    parameters = "scaled: lam (channels)"
    departures = (
        "How the scaled form starts is not printed; here λ = 0, which leaves a pretrained host unchanged. The paper "
        "names positions for the MLP only; in the attention branch front is before q, k, v, mid before the projection."
    )

    def exact(self, options: Options) -> bool:
        return options["kind"] == "scaled"

    def place(self, block: Block, anatomy: Anatomy, options: Options) -> list[Placement]:
        return [self.place_one(block, which, options) for which in branches(options)]

    def place_one(self, block: Block, which: str, options: Options) -> Placement:
        branch = block.branch(which)
        point = branch.hook_point(options["position"])
        kind = options["kind"]
        if kind in ("gate", "hybrid"):
            if not block.class_token:
                raise NotApplicable(
                    f"kind={kind} multiplies by the class token, and its tokens have none; use kind=plain"
                )
            return Placement(point, Gate() if kind == "gate" else Hybrid(), which)
        channels = branch.hidden if options["position"] == "mid" else branch.channels
        last = point.channels_last
        return Placement(point, ScaledBroadcast(channels, last) if kind == "scaled" else Broadcast(last), which)

    def flops(self, block: Block, anatomy: Anatomy, options: Options) -> int:
        per_channel = {"plain": 3, "scaled": 2, "gate": 2, "hybrid": 5}[options["kind"]]
        found = [block.branch(which) for which in branches(options)]
        width = sum(branch.hidden if options["position"] == "mid" else branch.channels for branch in found)
        return per_channel * block.tokens * width

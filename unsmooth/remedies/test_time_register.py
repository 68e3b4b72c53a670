"""Test-time register (Jiang et al., Vision Transformers Don't Need Trained Registers, NeurIPS 2025).

    h_{r,k} ← max_i h_{i,k},   h_{i,k} ← 0 for every patch token i,   for each register neuron k

h are the hidden activations of an MLP, and r is one extra token that starts from zero. A few neurons write the outliers
of the norm: tokens of very large norm on patches of little content. Their activation is moved to the extra token, so
that maps and patch tokens stay clean. Nothing is trained: the one remedy that helps a pretrained host as it is.

`unsmooth.find_register_neurons(model, images)` finds the neurons on a few images: those with the largest mean
activation at tokens with an outlying norm. Until then the host only has one more token. Class and other tokens before
the patches keep their activations. The token is added to the input of each block and taken from its output, so the rest
of the host never sees it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.extra_tokens import why_no_extra_tokens
from unsmooth.hosts.inputs import Example
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.hosts.token_layout import prefix_of
from unsmooth.remedies.base import NoOptions, Placement, Remedy, TokenHook, register, token_attention
from unsmooth.remedies.registers import AddTokens, TakeTokens, connect_tokens, extra_token_flops


class ZeroToken(AddTokens):
    """Adds one token of zeros to the input of the first block."""

    def added(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), 1, x.shape[-1])


class MovedActivations(TokenHook):
    """Moves the activations of register neurons from the patch tokens to the last token."""

    neurons: Tensor
    paused = False

    def __init__(self, hidden: int, prefix: int):
        super().__init__()
        self.prefix = prefix
        self.register_buffer("neurons", torch.zeros(hidden, dtype=torch.bool))

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        if self.paused:
            return x
        prefix, patches, last = x[:, : self.prefix], x[:, self.prefix : -1], x[:, -1:]
        moved = torch.where(self.neurons, x.amax(dim=1, keepdim=True), last)
        return torch.cat([prefix, patches.masked_fill(self.neurons, 0), moved], dim=1)


@register
class TestTimeRegister(Remedy[NoOptions]):
    key = "test_time_register"
    title = "Test-time register"
    paper = "Jiang et al., Vision Transformers Don't Need Trained Registers, NeurIPS 2025"
    acts_on = "one extra token and MLP activations, once"
    parameters = "none; buffer neurons (hidden channels) per block"
    departures = (
        "The rule is that of the abstract and the released code. There, tokens above a fixed norm count as outliers; "
        "here, as in the vital `token_norm_outliers`, those above the median by 10 median absolute deviations, unless "
        "a threshold is given."
    )
    once = True

    def blocks(self, anatomy: Anatomy, options: NoOptions) -> list[int]:
        return list(range(len(anatomy.blocks)))

    def place(self, block: Block, anatomy: Anatomy, options: NoOptions) -> list[Placement]:
        token_attention(block)
        branch, prefix = block.branch("mlp"), prefix_of(block, anatomy)
        middle = branch.hook_point("mid")
        if not middle.channels_last:
            raise NotApplicable("its MLP is channels first (NCHW)")
        return [
            Placement(HookPoint(block.name, "input"), AddTokens() if block.index else ZeroToken()),
            Placement(middle, MovedActivations(branch.hidden, prefix)),
            Placement(HookPoint(block.name, "output"), TakeTokens(1), "output"),
        ]

    def check(self, model: nn.Module, anatomy: Anatomy, example: Example | None) -> None:
        reason = why_no_extra_tokens(model, anatomy, example)
        if reason:
            raise NotApplicable(f"test_time_register does not fit this model: {reason}")

    def connect(self, placements: list[Placement], anatomy: Anatomy) -> list[Placement]:
        return connect_tokens(placements)

    def flops(self, block: Block, anatomy: Anatomy, options: NoOptions) -> int:
        return extra_token_flops(block, 1)

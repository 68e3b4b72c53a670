"""Registers (Darcet et al., Vision Transformers Need Registers, ICLR 2024).

    Z₀ = [x; r],   Z_l = block_l(Z_{l−1}),   r ∈ R^{R×d} learned;   P_ij += b for the keys j of registers

R learned tokens join the tokens before the first block and are dropped after the last. They are a place for what the
host otherwise writes into patch tokens of little content: the outliers of the norm. They have no position embedding.

A bias b on the scores of their keys, one per layer and head, starts from −10: at the start almost no attention goes to
the registers and a pretrained host is nearly unchanged; training opens them. The registers are added to the input of
each block and taken from its output, so the rest of the host never sees them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.extra_tokens import why_no_extra_tokens
from unsmooth.hosts.inputs import Example
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.remedies.base import HeadPatch, Placement, Remedy, TokenHook, register, token_attention
from unsmooth.seam.carried import Carried
from unsmooth.seam.intercept import SdpaOptions, add_mask
from unsmooth.utils.options import option, options


@options
class RegistersOptions:
    count: int = option("number of registers R", default=4, low=1, high=64)
    bias: float = option("bias of their keys at the start; 0: as the paper", default=-10.0)


class TakeTokens(TokenHook):
    """Takes the extra tokens from the output of a block and keeps them for the next block."""

    paused = False

    def __init__(self, count: int):
        super().__init__()
        self.count = count
        self.taken = Carried()

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        if self.paused:
            return x
        rest = x[:, : -self.count]
        self.taken.put(x[:, -self.count :])
        self.taken.leave(rest)
        return rest


class AddTokens(TokenHook):
    """Adds the extra tokens of the block before to the input of a block."""

    before: TakeTokens
    paused = False

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        return x if self.paused else torch.cat([x, self.added(x)], dim=1)

    def added(self, x: Tensor) -> Tensor:
        taken = self.before.taken.enter(x)
        assert taken is not None
        return taken


class FirstTokens(AddTokens):
    """Adds learned tokens to the input of the first block."""

    def __init__(self, count: int, channels: int):
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(count, channels))
        nn.init.normal_(self.tokens, std=0.02)

    def added(self, x: Tensor) -> Tensor:
        return self.tokens.to(x.dtype).expand(len(x), -1, -1)


class KeyBias(HeadPatch):
    """A learned bias on the scores of the last keys."""

    def __init__(self, attention: Attention, count: int, start: float):
        super().__init__(attention)
        self.count = count
        self.b = nn.Parameter(torch.full((attention.heads,), start))

    def row(self, keys: int) -> Tensor:
        """The bias of every key, per head."""
        bias = self.over_heads(self.b)
        return F.pad(bias.expand(*bias.shape[:-1], self.count), (keys - self.count, 0))

    def masked(self, q: Tensor, k: Tensor, options: SdpaOptions) -> SdpaOptions:
        row = self.row(k.shape[-2]).to(q.dtype)
        row = row.expand(*row.shape[:-2], q.shape[-2], -1)
        mask = add_mask(row, options["attn_mask"], options["is_causal"])
        return {**options, "attn_mask": mask, "is_causal": False}

    def reweight(self, weights: Tensor, logits: Tensor) -> Tensor:
        biased = weights * self.row(weights.shape[-1]).to(weights.dtype).exp()
        return biased / biased.sum(dim=-1, keepdim=True)


def connect_tokens(placements: list[Placement]) -> list[Placement]:
    """Each block adds the tokens that the block before took."""
    adds = [placement.patch for placement in placements if isinstance(placement.patch, AddTokens)]
    takes = [placement.patch for placement in placements if isinstance(placement.patch, TakeTokens)]
    for add, before in zip(adds[1:], takes, strict=False):
        add.__dict__["before"] = before  # not a child: it is registered in the block before
    return placements


def extra_token_flops(block: Block, count: int) -> int:
    """Operations of `count` more tokens in a block: its linear layers, and its attention among n + count tokens."""
    a, n = block.attention(), block.tokens
    linears = [linear for branch in (block.attn, block.mlp) if branch is not None for linear in branch.linears]
    pairs = (n + count) ** 2 - n**2
    products = 2 * a.heads * pairs * (a.head_channels + a.value_channels)
    return sum(2 * count * linear.inputs * linear.outputs for linear in linears) + products


@register
class Registers(Remedy[RegistersOptions]):
    key = "registers"
    title = "Registers"
    paper = "Darcet et al., Vision Transformers Need Registers, ICLR 2024"
    acts_on = "extra tokens, once"
    Options = RegistersOptions
    parameters = "tokens (R × channels), b (heads) per block"
    fused = "yes, with a mask"
    start_error = 1e-3
    departures = (
        "The paper trains from scratch without a bias on the keys. The bias lets training start from a pretrained "
        "host: at −10 its outputs change by a share of about R·e^−10 per row of a map. The registers come after all "
        "tokens of the host, those of the paper before; without position embedding the order does not matter."
    )
    once = True

    def exact(self, options: RegistersOptions) -> bool:
        return options.bias <= -10

    def blocks(self, anatomy: Anatomy, options: RegistersOptions) -> list[int]:
        return list(range(len(anatomy.blocks)))

    def place(self, block: Block, anatomy: Anatomy, options: RegistersOptions) -> list[Placement]:
        attention, count = token_attention(block), options.count
        if attention.mixed:
            raise NotApplicable("it mixes its maps over heads with a bias, which would attend to registers at once")
        add = AddTokens() if block.index else FirstTokens(count, block.channels)
        return [
            Placement(HookPoint(block.name, "input"), add),
            Placement(attention.core, KeyBias(attention, count, options.bias)),
            Placement(HookPoint(block.name, "output"), TakeTokens(count), "output"),
        ]

    def check(self, model: nn.Module, anatomy: Anatomy, example: Example | None) -> None:
        reason = why_no_extra_tokens(model, anatomy, example)
        if reason:
            raise NotApplicable(f"registers does not fit this model: {reason}")

    def connect(self, placements: list[Placement], anatomy: Anatomy) -> list[Placement]:
        return connect_tokens(placements)

    def flops(self, block: Block, anatomy: Anatomy, options: RegistersOptions) -> int:
        return extra_token_flops(block, options.count)

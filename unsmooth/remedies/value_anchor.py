"""Value anchors: attention that remembers the values of the first block.

    neutreno   y = AV + λ(V₁ − V)                 (Nguyen et al., NeurIPS 2023)
    residual   y = A(λ₁V₁ + λ₂V)                  (Zhou et al., Value Residual Learning, ACL 2025)

V₁ are the values of the first block. One λ (or λ₁ and λ₂) per layer and head; λ = 0 and
(λ₁, λ₂) = (0, 1) leave a pretrained host unchanged. NeuTRENO derives its term from a penalty on the distance to the
first values, which keeps the tokens from collapsing to one point; the value residual is a skip for values over all
blocks. Fused attention stays on. The map stays that of the host.

The first block itself is not changed: it stores its values for the others. The values of all blocks must have the same
size and order: blocks of other stages of a pyramid do not fit, nor does windowed attention, where the first values may
be in other windows.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.remedies.base import (
    AttentionPatch,
    OutputPatch,
    Placement,
    Remedy,
    TokenHook,
    register,
    square_attention,
    token_attention,
)
from unsmooth.seam.carried import Carried
from unsmooth.seam.intercept import Attend
from unsmooth.utils.options import option, options


@options
class ValueAnchorOptions:
    kind: Literal["neutreno", "residual"] = option("form of the anchor", default="neutreno")
    start: Literal["identity", "paper"] = option(
        "λ at the start: no anchor, which leaves a pretrained host unchanged, or the paper's: 0.6 for neutreno, 0.5 "
        "and 0.5 for residual",
        default="identity",
    )


class FirstValues(AttentionPatch):
    """Keeps the values of the first block. The attention stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.values = Carried()

    def forward(self, attend: Attend, v: Tensor) -> Tensor:
        self.values.put(v)
        return attend(v)


class CarryValues(TokenHook):
    """Carries the first values from block to block, at the input and output of each. The tokens stay as they are."""

    first: FirstValues

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        if source is None:
            self.first.values.enter(x)
        else:
            self.first.values.leave(x)
        return x


class AnchoredValues(OutputPatch):
    """Attention with a share of the values of the first block."""

    direct = True

    first: FirstValues

    def anchor(self, v: Tensor) -> Tensor:
        values = self.first.values.latest()
        if values is None or values.shape != v.shape:
            met = "none" if values is None else f"those of the first block are {tuple(values.shape)}"
            raise RuntimeError(f"unsmooth: value_anchor needs first values of the size {tuple(v.shape)}; {met}.")
        return values


class Neutreno(AnchoredValues):
    """AV + λ(V₁ − V)."""

    def __init__(self, attention: Attention, start: str):
        super().__init__(attention)
        self.lam = nn.Parameter(torch.full((attention.heads,), 0.6 if start == "paper" else 0.0))

    def output(self, attend: Attend, v: Tensor, x: Tensor | None) -> Tensor:
        return attend(v).addcmul(self.anchor(v) - v, self.over_heads(self.lam))


class ValueResidual(AnchoredValues):
    """A(λ₁V₁ + λ₂V)."""

    def __init__(self, attention: Attention, start: str):
        super().__init__(attention)
        first, own = (0.5, 0.5) if start == "paper" else (0.0, 1.0)
        self.lam_1 = nn.Parameter(torch.full((attention.heads,), first))
        self.lam_2 = nn.Parameter(torch.full((attention.heads,), own))

    def output(self, attend: Attend, v: Tensor, x: Tensor | None) -> Tensor:
        own = v * self.over_heads(self.lam_2)
        return attend(own.addcmul(self.anchor(v), self.over_heads(self.lam_1)))


def carry(block: Block) -> list[Placement]:
    """The hooks that carry the first values into a block and out of it."""
    sides = ("input", "output") if block.index else ("output",)
    return [Placement(HookPoint(block.name, side), CarryValues(), "carry") for side in sides]


@register
class ValueAnchor(Remedy[ValueAnchorOptions]):
    key = "value_anchor"
    title = "Value anchor (NeuTRENO, value residual)"
    paper = (
        "Nguyen, Nguyen & Baraniuk, Mitigating Over-smoothing in Transformers via Regularized Nonlocal Functionals, "
        "NeurIPS 2023; Zhou et al., Value Residual Learning, ACL 2025"
    )
    acts_on = "attention output"
    Options = ValueAnchorOptions
    parameters = "neutreno: lam (heads); residual: lam_1, lam_2 (heads); none in the first block"
    departures = (
        "The equations are from a summary of the papers, not from their text. NeuTRENO uses one constant λ for all "
        "blocks; here λ is learned per block and head. The value residual is learned per block in the paper, per block "
        "and head here."
    )

    def exact(self, options: ValueAnchorOptions) -> bool:
        return options.start == "identity"

    def place(self, block: Block, anatomy: Anatomy, options: ValueAnchorOptions) -> list[Placement]:
        attention = token_attention(block)
        if attention.kind == "windowed":
            raise NotApplicable("its attention is windowed, and the first values may be in other windows")
        if block is anatomy.blocks[0]:
            return [Placement(attention.core, FirstValues()), *carry(block)]
        sizes = [(a.windows, a.heads, a.keys, a.value_channels) for a in (anatomy.blocks[0].attention(), attention)]
        if sizes[0] != sizes[1]:
            raise NotApplicable("its values have another size than those of the first block")
        if options.kind == "residual":
            return [Placement(attention.core, ValueResidual(attention, options.start)), *carry(block)]
        square_attention(block, "values cannot be added to its output")
        return [Placement(attention.core, Neutreno(attention, options.start)), *carry(block)]

    def connect(self, placements: list[Placement], anatomy: Anatomy) -> list[Placement]:
        sources = [placement for placement in placements if isinstance(placement.patch, FirstValues)]
        anchored = [placement.patch for placement in placements if isinstance(placement.patch, AnchoredValues)]
        if sources and not anchored:
            raise NotApplicable(
                "value_anchor does not fit these blocks: no block after the first has values of the same size, with "
                "the same tokens"
            )
        if anchored and not sources:
            sources = [Placement(anatomy.blocks[0].attention().core, FirstValues())]
            placements = [*sources, *placements]
        if not anchored:
            return placements
        carried = {p.target.module for p in placements if isinstance(p.target, HookPoint)}
        placements = [*placements, *(p for b in anatomy.blocks if b.name not in carried for p in carry(b))]
        for placement in placements:
            if isinstance(placement.patch, AnchoredValues | CarryValues):
                placement.patch.__dict__["first"] = sources[0].patch  # not a child: it is registered in the first block
        return placements

    def flops(self, block: Block, anatomy: Anatomy, options: ValueAnchorOptions) -> int:
        if block is anatomy.blocks[0]:
            return 0
        a = block.attention()
        return 3 * a.windows * a.heads * a.keys * a.value_channels

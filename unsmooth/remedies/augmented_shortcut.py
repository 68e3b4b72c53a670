"""Augmented shortcuts (Tang et al., Augmented Shortcuts for Vision Transformers, NeurIPS 2021).

    AugMSA(Z) = MSA(Z) + Z + Σ_{i≤T} σ(ZΘ_i),   σ = GELU,   and AugMLP likewise

Θ is block-circulant: b × b blocks, each a circulant of size d/b made from one vector, so it has b·d parameters
(and a bias). The product is computed by splitting each circulant in halves (`unsmooth.remedies.kernels.circulant`), with fewer
multiplications than the dense product and no FFT.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.remedies.base import Option, Options, Placement, Remedy, TokenHook, branches, register
from unsmooth.remedies.kernels import circulant
from unsmooth.seam.patched import ResidualScale


class AugmentedPaths(TokenHook):
    """Parallel paths around a branch: σ of block-circulant maps of what the branch reads."""

    def __init__(self, channels: int, count: int, blocks_per_side: int, gained: bool):
        super().__init__()
        size = channels // blocks_per_side
        self.vectors = nn.Parameter(torch.empty(count, blocks_per_side, blocks_per_side, size))
        self.bias = nn.Parameter(torch.empty(count, channels))
        for parameter in (self.vectors, self.bias):
            nn.init.uniform_(parameter, -(channels**-0.5), channels**-0.5)
        self.gain = nn.Parameter(torch.zeros(channels)) if gained else None
        self.heard: Tensor | None = None

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        if self.heard is not None:
            source, self.heard = self.heard, None
        assert source is not None
        paths = circulant.augment(source, self.vectors, self.bias)
        return x + paths if self.gain is None else x.addcmul(paths, self.gain)


class InputCapture(TokenHook):
    """Tells the paths what their branch reads, where no single module is the whole branch."""

    paths: AugmentedPaths

    def __init__(self, paths: AugmentedPaths):
        super().__init__()
        self.__dict__["paths"] = paths  # known, not owned: its parameters have their own place

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        self.paths.heard = x
        return x


@register
class AugmentedShortcut(Remedy):
    key = "augmented_shortcut"
    title = "Augmented shortcuts"
    paper = "Tang et al., Augmented Shortcuts for Vision Transformers, NeurIPS 2021"
    acts_on = "both branches"
    options = {
        "branch": Option("both", "around which branch", choices=("both", "attn", "mlp")),
        "count": Option(2, "number of paths T", low=1, high=16),
        "blocks_per_side": Option(4, "circulant blocks per side b; must divide the channels", low=1),
        "scale": Option(1.0, "factor on the whole sum, skip included; 0.75 is the released code", above=0.0, high=1.0),
        "start": Option("paper", "random paths, or a zero gain that leaves a pretrained host unchanged",
                        choices=("paper", "identity")),
    }  # fmt: skip
    parameters = "vectors (T × b × b × d/b), bias (T × d); start=identity: gain (channels)"
    departures = (
        "The paths read LN(x), as the released code has it, where the equation prints Z. They are part of the branch: "
        "layer scale and drop path act on them too, which the released code leaves out of its drop path."
    )

    def exact(self, options: Options) -> bool:
        return options["start"] == "identity" and options["scale"] == 1.0

    def place(self, block: Block, anatomy: Anatomy, options: Options) -> list[Placement]:
        return [placement for which in branches(options) for placement in self.place_one(block, which, options)]

    def place_one(self, block: Block, which: str, options: Options) -> list[Placement]:
        branch = block.branch(which)
        sides = options["blocks_per_side"]
        if branch.channels % sides:
            near = [b for b in range(1, sides + 1) if branch.channels % b == 0][-1]
            raise NotApplicable(
                f"its {branch.channels} channels are not divisible by blocks_per_side={sides}; {near} would do"
            )
        paths = AugmentedPaths(branch.channels, options["count"], sides, options["start"] == "identity")
        for position in ("front", "end"):
            if branch.module is None and not branch.hook_point(position).channels_last:
                raise NotApplicable("its branch holds channels in front of tokens")
        if branch.module is not None:
            placements = [Placement(HookPoint(branch.module, "output"), paths, which)]
        else:
            placements = [Placement(branch.hook_point("front"), InputCapture(paths), f"{which}_listener"),
                          Placement(branch.hook_point("end"), paths, which)]  # fmt: skip
        if options["scale"] != 1.0:
            if block.residuals.count(which) != 1:
                raise NotApplicable(f"no single residual sum of its {which} branch was found to scale; use scale=1")
            placements.append(Placement(block.name, ResidualScale(which, options["scale"], options["scale"]), which))
        return placements

    def flops(self, block: Block, anatomy: Anatomy, options: Options) -> int:
        return sum(self.path_flops(block.branch(which).channels, options) * block.tokens for which in branches(options))

    def path_flops(self, channels: int, options: Options) -> int:
        """Operations for one token: the split products, and a pass of additions and GELU over each path."""
        count, sides = options["count"], options["blocks_per_side"]
        vectors = torch.empty(count, sides, sides, channels // sides, device="meta")
        return sum(2 * weight.numel() for weight in circulant.prepare(vectors).weights) + 4 * count * channels

"""Augmented shortcuts (Tang et al., Augmented Shortcuts for Vision Transformers, NeurIPS 2021).

    AugMSA(Z) = MSA(Z) + Z + Σ_{i≤T} σ(ZΘ_i),   σ = GELU,   and AugMLP likewise

Both are printed. The paths of MSA are the main ones; those of the MLP assist, because attention still averages what
they add. Theorems 2 and S.1 (Eq. S.5, S.8) bound the diversity of the tokens: vital `diversity_bound`.

Θ is block-circulant: b × b blocks, each a circulant of size d/b defined by one vector, so it has b·d parameters (and a
bias). The product is computed by splitting each circulant in four (`unsmooth.remedies.kernels.circulant`), with fewer
multiplications than the dense product and no FFT.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.remedies.base import Placement, Remedy, TokenHook, branch_names, register
from unsmooth.remedies.kernels import circulant
from unsmooth.seam.carried import Carried
from unsmooth.seam.residual_sums import ResidualScale
from unsmooth.utils.options import option, options


@options
class AugmentedShortcutOptions:
    branch: Literal["both", "attn", "mlp"] = option("branch with parallel paths", default="both")
    count: int = option("number of paths T", default=2, low=1, high=16)
    blocks_per_side: int = option("circulant blocks per side b; must divide the channels", default=4, low=1)
    scale: float = option(
        "factor of the whole sum, skip included; 0.75 in the released code", default=1.0, above=0.0, high=1.0
    )
    start: Literal["paper", "identity"] = option(
        "random paths, or paths with a zero gain that leave a pretrained host unchanged", default="paper"
    )


class AugmentedPaths(TokenHook):
    """Parallel paths around a branch: σ of block-circulant projections of the input of the branch."""

    def __init__(self, channels: int, count: int, blocks_per_side: int, gained: bool):
        super().__init__()
        size = channels // blocks_per_side
        self.vectors = nn.Parameter(torch.empty(count, blocks_per_side, blocks_per_side, size))
        self.bias = nn.Parameter(torch.empty(count, channels))
        for parameter in (self.vectors, self.bias):
            nn.init.uniform_(parameter, -(channels**-0.5), channels**-0.5)
        self.gain = nn.Parameter(torch.zeros(channels)) if gained else None
        self.branch_input = Carried()  # put by an InputCapture
        self._kept: tuple[Tensor, Tensor, circulant.Prepared] | None = None  # vectors, bias and their matrices

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        captured = self.branch_input.latest()
        if captured is not None:
            source = captured
            self.branch_input.clear()
        assert source is not None
        if self.gain is None:
            return circulant.augment(source, self.matrices(), self.bias, onto=x)
        return x.addcmul(circulant.augment(source, self.matrices(), self.bias), self.gain)

    def matrices(self) -> Tensor | circulant.Prepared:
        """The vectors, or without gradients on a CPU their matrices, which are kept until a parameter changes.

        Writing to `vectors.data` does not raise a version, so values are compared, which takes 1 % of the time.
        """
        vectors = self.vectors
        if torch.is_grad_enabled() or circulant.is_traced():
            return vectors
        if type(vectors) not in (nn.Parameter, Tensor) or vectors.device.type != "cpu":
            return vectors
        bias, kept = self.bias, self._kept
        if (
            kept is None
            or kept[0].dtype != vectors.dtype
            or not torch.equal(kept[0], vectors)
            or (kept[2].shift is not None and not torch.equal(kept[1], bias))
        ):
            copies = vectors.detach().clone(), bias.detach().clone()
            self._kept = kept = (*copies, circulant.prepare(*copies))
        return kept[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}


class InputCapture(TokenHook):
    """Passes the input of a branch to its paths, for a branch that is not a single module."""

    paths: AugmentedPaths

    def __init__(self, paths: AugmentedPaths):
        super().__init__()
        self.__dict__["paths"] = paths  # not a child: its parameters are registered elsewhere

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        self.paths.branch_input.put(x)
        return x


@register
class AugmentedShortcut(Remedy[AugmentedShortcutOptions]):
    key = "augmented_shortcut"
    title = "Augmented shortcuts"
    paper = "Tang et al., Augmented Shortcuts for Vision Transformers, NeurIPS 2021"
    acts_on = "both branches"
    Options = AugmentedShortcutOptions
    parameters = "vectors (T × b × b × d/b), bias (T × d); start=identity: gain (channels)"
    departures = (
        "The paths read LN(x), as in the released code, where the equation prints Z. They are part of the branch, so "
        "layer scale and drop path act on them too; the drop path of the released code does not."
    )

    def exact(self, options: AugmentedShortcutOptions) -> bool:
        return options.start == "identity" and options.scale == 1.0

    def place(self, block: Block, anatomy: Anatomy, options: AugmentedShortcutOptions) -> list[Placement]:
        return [
            placement for name in branch_names(options.branch) for placement in self.place_around(block, name, options)
        ]

    def place_around(self, block: Block, name: str, options: AugmentedShortcutOptions) -> list[Placement]:
        branch = block.branch(name)
        sides = options.blocks_per_side
        if branch.channels % sides:
            divisor = max(b for b in range(1, sides + 1) if branch.channels % b == 0)
            raise NotApplicable(
                f"its {branch.channels} channels are not divisible by blocks_per_side={sides}; "
                f"use blocks_per_side={divisor}"
            )
        paths = AugmentedPaths(branch.channels, options.count, sides, options.start == "identity")
        for position in ("front", "end"):
            if branch.module is None and not branch.hook_point(position).channels_last:
                raise NotApplicable("its tokens are channels first (NCHW)")
        if branch.module is not None:
            placements = [Placement(HookPoint(branch.module, "output"), paths, name)]
        else:
            placements = [Placement(branch.hook_point("front"), InputCapture(paths), f"{name}_input"),
                          Placement(branch.hook_point("end"), paths, name)]  # fmt: skip
        if options.scale != 1.0:
            if block.residuals.count(name) != 1:
                raise NotApplicable(
                    f"its {name} branch has {block.residuals.count(name)} residual sums, not one; use scale=1"
                )
            placements.append(Placement(block.name, ResidualScale(name, options.scale, options.scale), name))
        return placements

    def flops(self, block: Block, anatomy: Anatomy, options: AugmentedShortcutOptions) -> int:
        widths = [block.branch(name).channels for name in branch_names(options.branch)]
        return sum(self.path_flops(channels, options) * block.tokens for channels in widths)

    def path_flops(self, channels: int, options: AugmentedShortcutOptions) -> int:
        """Operations per token: the split products, and one pass of additions and GELU per path."""
        count, sides = options.count, options.blocks_per_side
        vectors = torch.empty(count, sides, sides, channels // sides, device="meta")
        return sum(2 * weight.numel() for weight in circulant.prepare(vectors).weights) + 4 * count * channels

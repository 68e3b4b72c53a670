"""Formats of the authors' checkpoints: the names and shapes of a remedy's parameters there, and what they are here.

AttnScale and FeatScale (VITA-Group/ViT-Anti-Oversmoothing; `vit`, `cait` and `swin` name blocks alike):

    BLOCK.attn.lamb   (heads)      Â = J + (1 + lamb)(A − J)                                       → omega
    BLOCK.lamb1       (channels)   gain on the mean token: 1 + lamb1, or 1 + 2·lamb1 (see doubled) → s
    BLOCK.lamb2       (channels)   gain on the rest, likewise                                      → t

Augmented shortcuts (huawei-noah/Efficient-AI-Backbones, augvit_pytorch; `augs_attn` around attention, `augs` around
the MLP, and a second path of each with the suffix 2):

    BLOCK.augs_attn.0.weight_list   (b·d)    vectors of b × b circulant blocks, row by row; a block's first column
    BLOCK.augs_attn.0.bias          (d)
    BLOCK.augs_attn.0.index_matrix  (d, d)   the position of each entry of Θ in weight_list: a buffer, only checked here
    BLOCK.augs_attn.0.weight        (d, d)   a dense Θ in the variant "linear2": circulant blocks of size 1

    x ← ¾ (x + f(LN(x)) + Σ GELU(Θ_i LN(x) + bias_i)),   that is scale=0.75
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError

BlockTensors = Mapping[str, Tensor]  # the tensors of one block, by their names without the block's


class CheckpointFormat(ABC):
    """The format of one remedy in the checkpoints of its authors."""

    remedy: ClassVar[str]
    names: ClassVar[re.Pattern[str]]  # names of its parameters, without the block's
    required: ClassVar[tuple[str, ...]]  # names that every block must have; A|B: either

    def check(self, blocks: Mapping[str, BlockTensors], where: str) -> None:
        """Raise if parameters are missing or broken."""
        missing = [
            f"{block}.{name}"
            for block, tensors in blocks.items()
            for name in self.required
            if not any(either in tensors for either in name.split("|"))
        ]
        if missing:
            raise UnsmoothError(f"{where} is incomplete: it lacks {some(missing)}")

    def options(self, blocks: Mapping[str, BlockTensors]) -> dict[str, Any]:
        """The options of the remedy that these parameters need, if they are not the default."""
        return {}

    @abstractmethod
    def values(self, tensors: BlockTensors, options: Mapping[str, Any], factor: float) -> list[dict[str, Tensor]]:
        """The parameters of the patches of the remedy on one block, in order."""


class AttnScaleFormat(CheckpointFormat):
    remedy = "attn_scale"
    names = re.compile(r"attn\.lamb")
    required = ("attn.lamb",)

    def values(self, tensors: BlockTensors, options: Mapping[str, Any], factor: float) -> list[dict[str, Tensor]]:
        return [{"omega": tensors["attn.lamb"]}]


class FeatScaleFormat(CheckpointFormat):
    remedy = "feat_scale"
    names = re.compile(r"lamb[12]")
    required = ("lamb1", "lamb2")

    def values(self, tensors: BlockTensors, options: Mapping[str, Any], factor: float) -> list[dict[str, Tensor]]:
        return [{"s": factor * tensors["lamb1"], "t": factor * tensors["lamb2"]}]


class AugmentedShortcutFormat(CheckpointFormat):
    remedy = "augmented_shortcut"
    names = re.compile(r"augs(_attn)?2?\.(0\.)?(weight_list|weight|bias|index_matrix)")
    PATHS = (("augs_attn", "augs_attn2"), ("augs", "augs2"))  # around attention, around the MLP
    required = tuple(
        name
        for path in ("augs_attn", "augs_attn2", "augs", "augs2")
        for name in (f"{path}.0.weight_list|{path}.0.weight", f"{path}.0.bias")
    )

    def check(self, blocks: Mapping[str, BlockTensors], where: str) -> None:
        for block, tensors in blocks.items():
            if any(".0." not in name for name in tensors):
                raise UnsmoothError(
                    f"{where} has one path without an activation around each branch of {block} (the variants 'linear' "
                    "and 'circulant'). Import 'circulant2' or 'linear2', whose paths have a GELU as in the paper."
                )
        super().check(blocks, where)
        for block, tensors in blocks.items():
            for path in (path for branch in self.PATHS for path in branch):
                weights, channels = _matrix(tensors, path).numel(), tensors[f"{path}.0.bias"].numel()
                if not channels or not weights or weights % channels:
                    raise UnsmoothError(
                        f"{where} is broken: {block}.{path}.0 has {weights} weights and a bias of {channels} channels; "
                        "b × b circulant blocks have b weights per channel"
                    )

    def options(self, blocks: Mapping[str, BlockTensors]) -> dict[str, Any]:
        tensors = next(iter(blocks.values()))
        sides = _matrix(tensors, "augs_attn").numel() // len(tensors["augs_attn.0.bias"])
        return {**({} if sides == 4 else {"blocks_per_side": sides}), "scale": 0.75}

    def values(self, tensors: BlockTensors, options: Mapping[str, Any], factor: float) -> list[dict[str, Tensor]]:
        sides = options.get("blocks_per_side", 4)
        return [
            {
                "vectors": torch.stack([self.vectors(tensors, path, sides) for path in branch]),
                "bias": torch.stack([tensors[f"{path}.0.bias"] for path in branch]),
            }
            for branch in self.PATHS
        ]

    def vectors(self, tensors: BlockTensors, path: str, sides: int) -> Tensor:
        """The vectors of one path, (b, b, d/b)."""
        vectors, channels = _matrix(tensors, path), len(tensors[f"{path}.0.bias"])
        if vectors.numel() != sides * channels or channels % sides:
            raise UnsmoothError(f"{path}.0 has {vectors.numel()} weights, not {sides * channels} as the first path")
        index = tensors.get(f"{path}.0.index_matrix")
        if index is not None and not torch.equal(index, circulant_index(sides, channels // sides)):
            raise UnsmoothError(f"{path}.0.index_matrix is not that of {sides} × {sides} circulant blocks")
        return vectors.reshape(sides, sides, channels // sides)


def _matrix(tensors: BlockTensors, path: str) -> Tensor:
    name = f"{path}.0.weight_list"
    return tensors[name] if name in tensors else tensors[f"{path}.0.weight"]


def circulant_index(sides: int, size: int) -> Tensor:
    """The position of each entry of a block-circulant matrix in its vectors, which are in row-major order of blocks."""
    position = torch.arange(size)
    within = (position.unsqueeze(1) - position) % size
    block = size * torch.arange(sides * sides).view(sides, 1, sides, 1)
    return (block + within.unsqueeze(1)).reshape(sides * size, sides * size)


FORMATS: dict[str, CheckpointFormat] = {
    each.remedy: each for each in (AttnScaleFormat(), FeatScaleFormat(), AugmentedShortcutFormat())
}


def some(names: Sequence[str]) -> str:
    """The number of names and the first three of them."""
    return f"{len(names)} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"

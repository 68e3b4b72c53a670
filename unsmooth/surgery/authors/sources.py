"""What the authors' checkpoints hold of a remedy, and what it is here.

AttnScale and FeatScale (VITA-Group/ViT-Anti-Oversmoothing; `vit`, `cait` and `swin` name blocks alike):

    BLOCK.attn.lamb   (heads)      Â = J + (1 + lamb)(A − J)                                       → omega
    BLOCK.lamb1       (channels)   gain on the mean token: 1 + lamb1, or 1 + 2·lamb1 (see doubled) → s
    BLOCK.lamb2       (channels)   gain on the rest, likewise                                      → t

Augmented shortcuts (huawei-noah/Efficient-AI-Backbones, augvit_pytorch; `augs_attn` around attention, `augs` around
the MLP, and a second path of each with a 2 behind its name):

    BLOCK.augs_attn.0.weight_list   (b·d)    vectors of b × b circulant blocks, row by row; a block's first column
    BLOCK.augs_attn.0.bias          (d)
    BLOCK.augs_attn.0.index_matrix  (d, d)   where each entry of Θ is in weight_list: a buffer, only checked here
    BLOCK.augs_attn.0.weight        (d, d)   in the variant "linear2", a dense Θ: circulant blocks of size 1

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

Found = Mapping[str, Tensor]  # of one block: tensors by their name behind the block's


class Source(ABC):
    """How one remedy is written in its authors' checkpoints."""

    remedy: ClassVar[str]
    names: ClassVar[re.Pattern[str]]  # of its parameters, behind a block's name
    needed: ClassVar[tuple[str, ...]]  # that every block must have; of A|B, one

    def check(self, blocks: Mapping[str, Found], where: str) -> None:
        """Refuse parameters that are not whole."""
        missing = [
            f"{block}.{name}"
            for block, found in blocks.items()
            for name in self.needed
            if not any(other in found for other in name.split("|"))
        ]
        if missing:
            raise UnsmoothError(f"{where} is not whole: it lacks {some(missing)}")

    def options(self, blocks: Mapping[str, Found]) -> dict[str, Any]:
        """Options of the remedy that these parameters need, where they are not the default."""
        return {}

    @abstractmethod
    def values(self, found: Found, options: Mapping[str, Any], factor: float) -> list[dict[str, Tensor]]:
        """Parameters of the parts that the remedy has on a block, in their order."""


class AttnScale(Source):
    remedy = "attn_scale"
    names = re.compile(r"attn\.lamb")
    needed = ("attn.lamb",)

    def values(self, found: Found, options: Mapping[str, Any], factor: float) -> list[dict[str, Tensor]]:
        return [{"omega": found["attn.lamb"]}]


class FeatScale(Source):
    remedy = "feat_scale"
    names = re.compile(r"lamb[12]")
    needed = ("lamb1", "lamb2")

    def values(self, found: Found, options: Mapping[str, Any], factor: float) -> list[dict[str, Tensor]]:
        return [{"s": factor * found["lamb1"], "t": factor * found["lamb2"]}]


class AugmentedShortcut(Source):
    remedy = "augmented_shortcut"
    names = re.compile(r"augs(_attn)?2?\.(0\.)?(weight_list|weight|bias|index_matrix)")
    PATHS = (("augs_attn", "augs_attn2"), ("augs", "augs2"))  # around attention, around the MLP
    needed = tuple(
        name
        for path in ("augs_attn", "augs_attn2", "augs", "augs2")
        for name in (f"{path}.0.weight_list|{path}.0.weight", f"{path}.0.bias")
    )

    def check(self, blocks: Mapping[str, Found], where: str) -> None:
        for block, found in blocks.items():
            if any(".0." not in name for name in found):
                raise UnsmoothError(
                    f"{where} has one path without an activation around each branch of {block} (the variants 'linear' "
                    "and 'circulant'); here every path has its GELU, as printed: import 'circulant2' or 'linear2'"
                )
        super().check(blocks, where)
        for block, found in blocks.items():
            for path in (path for branch in self.PATHS for path in branch):
                weights, channels = _matrix(found, path).numel(), found[f"{path}.0.bias"].numel()
                if not channels or not weights or weights % channels:
                    raise UnsmoothError(
                        f"{where} is broken: {block}.{path}.0 has {weights} weights and a bias of {channels}; of b × b "
                        "circulant blocks there are b for each channel"
                    )

    def options(self, blocks: Mapping[str, Found]) -> dict[str, Any]:
        found = next(iter(blocks.values()))
        sides = _matrix(found, "augs_attn").numel() // len(found["augs_attn.0.bias"])
        return {**({} if sides == 4 else {"blocks_per_side": sides}), "scale": 0.75}

    def values(self, found: Found, options: Mapping[str, Any], factor: float) -> list[dict[str, Tensor]]:
        sides = options.get("blocks_per_side", 4)
        return [
            {
                "vectors": torch.stack([self.vectors(found, path, sides) for path in branch]),
                "bias": torch.stack([found[f"{path}.0.bias"] for path in branch]),
            }
            for branch in self.PATHS
        ]

    def vectors(self, found: Found, path: str, sides: int) -> Tensor:
        """The vectors of one path, (b, b, d/b)."""
        vectors, channels = _matrix(found, path), len(found[f"{path}.0.bias"])
        if vectors.numel() != sides * channels or channels % sides:
            raise UnsmoothError(f"{path}.0 has {vectors.numel()} weights, not {sides * channels} as the first path has")
        index = found.get(f"{path}.0.index_matrix")
        if index is not None and not torch.equal(index, circulant_index(sides, channels // sides)):
            raise UnsmoothError(f"{path}.0.index_matrix is not of {sides} × {sides} circulant blocks")
        return vectors.reshape(sides, sides, channels // sides)


def _matrix(found: Found, path: str) -> Tensor:
    name = f"{path}.0.weight_list"
    return found[name] if name in found else found[f"{path}.0.weight"]


def circulant_index(sides: int, size: int) -> Tensor:
    """Where each entry of a block-circulant matrix is in its vectors, laid out row by row of blocks."""
    place = torch.arange(size)
    within = (place.unsqueeze(1) - place) % size
    block = size * torch.arange(sides * sides).view(sides, 1, sides, 1)
    return (block + within.unsqueeze(1)).reshape(sides * size, sides * size)


SOURCES: dict[str, Source] = {source.remedy: source for source in (AttnScale(), FeatScale(), AugmentedShortcut())}


def some(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"

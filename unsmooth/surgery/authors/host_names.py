"""Which host a checkpoint is of, by the shapes of its weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unsmooth.errors import UnsmoothError
from unsmooth.spec import SpecItem


@dataclass(frozen=True)
class Known:
    """A host of timm: its name, channels, blocks (of each stage) and the side of its images."""

    name: str
    channels: int
    depths: tuple[int, ...]
    side: int = 224


VIT = (("tiny", 192), ("small", 384), ("base", 768))
FAMILIES: dict[str, tuple[Known, ...]] = {
    "deit": (
        *(Known(f"deit_{size}_patch16_224", channels, (12,)) for size, channels in VIT),
        Known("deit_base_patch16_384", 768, (12,), 384),
    ),
    # The same host as DeiT, for images of mean and deviation 0.5, as the script for augmented shortcuts feeds it.
    "vit": tuple(Known(f"vit_{size}_patch16_224", channels, (12,)) for size, channels in VIT),
    "cait": (
        Known("cait_xxs24_224", 192, (24,)), Known("cait_xxs24_384", 192, (24,), 384),
        Known("cait_xxs36_224", 192, (36,)), Known("cait_xxs36_384", 192, (36,), 384),
        Known("cait_xs24_384", 288, (24,), 384), Known("cait_s24_224", 384, (24,)),
        Known("cait_s24_384", 384, (24,), 384), Known("cait_s36_384", 384, (36,), 384),
        Known("cait_m36_384", 768, (36,), 384), Known("cait_m48_448", 768, (48,), 448),
    ),
    "swin": (
        Known("swin_tiny_patch4_window7_224", 96, (2, 2, 6, 2)),
        Known("swin_small_patch4_window7_224", 96, (2, 2, 18, 2)),
        Known("swin_base_patch4_window7_224", 128, (2, 2, 18, 2)),
        Known("swin_base_patch4_window12_384", 128, (2, 2, 18, 2), 384),
        Known("swin_large_patch4_window7_224", 192, (2, 2, 18, 2)),
    ),
}  # fmt: skip
PATCH = {"deit": 16, "vit": 16, "cait": 16, "swin": 4}


def family_of(weights: Mapping[str, Tensor], remedy: str) -> str:
    if "layers.0.blocks.0.attn.qkv.weight" in weights:
        return "swin"
    if "blocks_token_only.0.attn.q.weight" in weights:
        return "cait"
    return "vit" if remedy == "augmented_shortcut" else "deit"


def host_of(weights: Mapping[str, Tensor], remedy: str) -> SpecItem:
    """The host that these weights are of, with options where it is not as timm's name has it."""
    family = family_of(weights, remedy)
    embedding, head = weights.get("patch_embed.proj.weight"), weights.get("head.weight")
    depths = _depths(weights)
    if embedding is None or embedding.ndim != 4 or head is None or not depths:
        raise UnsmoothError("this checkpoint is of no DeiT, CaiT or Swin; name its host: spec='HOST', or --spec HOST")
    channels, patch = embedding.shape[0], embedding.shape[-1]
    side = _side(weights, family)
    alike = [known for known in FAMILIES[family] if known.channels == channels]
    if not alike or patch != PATCH[family]:
        raise UnsmoothError(
            f"no {family} of timm has {channels} channels and patches of {patch} pixels; name the host with its "
            "options: spec='HOST(…)', or --spec 'HOST(…)'"
        )
    best = max(alike, key=lambda known: (known.depths == depths, known.side == side))
    options: dict[str, Any] = {}
    if best.depths != depths:
        options |= {"depths": list(depths)} if family == "swin" else {"depth": depths[0]}
    if best.side != side:
        options["img_size"] = side
    if len(head) != 1000:
        options["num_classes"] = len(head)
    return SpecItem(best.name, options)


def _depths(weights: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Blocks of each stage; a plain transformer has one."""
    found: dict[int, int] = {}
    for name in weights:
        match = re.match(r"(?:layers\.(\d+)\.)?blocks\.(\d+)\.", name)
        if match:
            stage, block = int(match[1] or 0), int(match[2])
            found[stage] = max(found.get(stage, 0), block + 1)
    return tuple(found[stage] for stage in sorted(found))


def _side(weights: Mapping[str, Tensor], family: str) -> int:
    """The side of its images: patches are counted by the position embedding, and in Swin follow from the window."""
    if family == "swin":
        table = weights.get("layers.0.blocks.0.attn.relative_position_bias_table")
        return 384 if table is not None and len(table) == (2 * 12 - 1) ** 2 else 224
    positions = weights.get("pos_embed")
    if positions is None:
        raise UnsmoothError("this checkpoint has no pos_embed; name its host: spec='HOST', or --spec HOST")
    return PATCH[family] * math.isqrt(positions.shape[1])  # a class token is no patch, and makes no square larger

"""Recognises the host of a checkpoint by the names and shapes of its weights."""

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
class TimmHost:
    """A host of timm: its name, channels, blocks per stage and image size."""

    name: str
    channels: int
    depths: tuple[int, ...]
    image_size: int = 224


VIT = (("tiny", 192), ("small", 384), ("base", 768))
FAMILIES: dict[str, tuple[TimmHost, ...]] = {
    "deit": (
        *(TimmHost(f"deit_{size}_patch16_224", channels, (12,)) for size, channels in VIT),
        TimmHost("deit_base_patch16_384", 768, (12,), 384),
    ),
    # The architecture of DeiT, for images normalised by 0.5, as in the script of augmented shortcuts.
    "vit": tuple(TimmHost(f"vit_{size}_patch16_224", channels, (12,)) for size, channels in VIT),
    "cait": (
        TimmHost("cait_xxs24_224", 192, (24,)), TimmHost("cait_xxs24_384", 192, (24,), 384),
        TimmHost("cait_xxs36_224", 192, (36,)), TimmHost("cait_xxs36_384", 192, (36,), 384),
        TimmHost("cait_xs24_384", 288, (24,), 384), TimmHost("cait_s24_224", 384, (24,)),
        TimmHost("cait_s24_384", 384, (24,), 384), TimmHost("cait_s36_384", 384, (36,), 384),
        TimmHost("cait_m36_384", 768, (36,), 384), TimmHost("cait_m48_448", 768, (48,), 448),
    ),
    "swin": (
        TimmHost("swin_tiny_patch4_window7_224", 96, (2, 2, 6, 2)),
        TimmHost("swin_small_patch4_window7_224", 96, (2, 2, 18, 2)),
        TimmHost("swin_base_patch4_window7_224", 128, (2, 2, 18, 2)),
        TimmHost("swin_base_patch4_window12_384", 128, (2, 2, 18, 2), 384),
        TimmHost("swin_large_patch4_window7_224", 192, (2, 2, 18, 2)),
    ),
}  # fmt: skip
PATCH = {"deit": 16, "vit": 16, "cait": 16, "swin": 4}


def family_of(weights: Mapping[str, Tensor], remedy: str) -> str:
    """The family of the host: deit, vit, cait or swin."""
    if "layers.0.blocks.0.attn.qkv.weight" in weights:
        return "swin"
    if "blocks_token_only.0.attn.q.weight" in weights:
        return "cait"
    return "vit" if remedy == "augmented_shortcut" else "deit"


def host_of(weights: Mapping[str, Tensor], remedy: str) -> SpecItem:
    """The host of these weights, with options where it differs from the default of timm."""
    family = family_of(weights, remedy)
    embedding, head = weights.get("patch_embed.proj.weight"), weights.get("head.weight")
    depths = _depths(weights)
    if embedding is None or embedding.ndim != 4 or head is None or not depths:
        raise UnsmoothError("this checkpoint is not a DeiT, CaiT or Swin. Pass its host: spec='HOST' (--spec).")
    channels, patch = embedding.shape[0], embedding.shape[-1]
    size = _image_size(weights, family)
    candidates = [host for host in FAMILIES[family] if host.channels == channels]
    if not candidates or patch != PATCH[family]:
        raise UnsmoothError(
            f"no {family} of timm has {channels} channels and patches of {patch} pixels. Pass the host with its "
            "options: spec='HOST(…)' (--spec)."
        )
    best = max(candidates, key=lambda host: (host.depths == depths, host.image_size == size))
    options: dict[str, Any] = {}
    if best.depths != depths:
        options |= {"depths": list(depths)} if family == "swin" else {"depth": depths[0]}
    if best.image_size != size:
        options["img_size"] = size
    if len(head) != 1000:
        options["num_classes"] = len(head)
    return SpecItem(best.name, options)


def _depths(weights: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Blocks per stage; a plain transformer has one stage."""
    depths: dict[int, int] = {}
    for name in weights:
        match = re.match(r"(?:layers\.(\d+)\.)?blocks\.(\d+)\.", name)
        if match:
            stage, block = int(match[1] or 0), int(match[2])
            depths[stage] = max(depths.get(stage, 0), block + 1)
    return tuple(depths[stage] for stage in sorted(depths))


def _image_size(weights: Mapping[str, Tensor], family: str) -> int:
    """The image size, from the number of positions or, in Swin, from the window."""
    if family == "swin":
        table = weights.get("layers.0.blocks.0.attn.relative_position_bias_table")
        return 384 if table is not None and len(table) == (2 * 12 - 1) ** 2 else 224
    positions = weights.get("pos_embed")
    if positions is None:
        raise UnsmoothError("this checkpoint has no pos_embed. Pass its host: spec='HOST' (--spec).")
    return PATCH[family] * math.isqrt(positions.shape[1])  # isqrt ignores the class token

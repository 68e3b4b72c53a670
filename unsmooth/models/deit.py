"""DeiT-S of 24 blocks, the deep host of Anti-Oversmoothing: `deit_small_patch16_224(depth=24)` under its own name.

Width 384, 6 heads, patches of 16 pixels (Touvron et al., Training data-efficient image transformers, ICML 2021; 24
blocks in Touvron et al., Going deeper with image transformers, ICCV 2021).
"""

from __future__ import annotations

from typing import Any

from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer

from unsmooth.models.default_cfgs import build_vit, settings

default_cfgs = settings("deit_small_24_patch16_224")


@register_model  # type: ignore[untyped-decorator]
def deit_small_24_patch16_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """DeiT-S with 24 blocks."""
    sizes = {"patch_size": 16, "embed_dim": 384, "depth": 24, "num_heads": 6, **kwargs}
    return build_vit(VisionTransformer, "deit_small_24_patch16_224", pretrained, **sizes)

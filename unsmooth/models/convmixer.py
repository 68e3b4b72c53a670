"""A ConvMixer for small images: 8 blocks of 256 channels, kernel size 5, patch size 2. All sizes are options.

It mixes tokens by convolution instead of attention, in blocks of

    X' = BN(σ(depth-wise convolution of X)) + X        Eq. 22 of Always Skip Attention
    X  = BN(σ(point-wise convolution of X'))           Eq. 23

Figure 6 of that paper has ConvMixer-Tiny as the control of the no-skip study: `convmixer_tiny+no_skip` is Eq. 22
without the last X. The paper does not print the sizes of ConvMixer-Tiny; these are ours.
"""

from __future__ import annotations

from typing import Any

from timm.models import register_model
from timm.models._builder import build_model_with_cfg
from timm.models._registry import generate_default_cfgs
from timm.models.convmixer import ConvMixer

default_cfgs = generate_default_cfgs({
    "convmixer_tiny.untrained": {
        "url": "", "num_classes": 1000, "input_size": (3, 32, 32), "pool_size": None, "crop_pct": 1.0,
        "interpolation": "bicubic", "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "classifier": "head",
        "first_conv": "stem.0",
    }
})  # fmt: skip


@register_model  # type: ignore[untyped-decorator]
def convmixer_tiny(pretrained: bool = False, **kwargs: Any) -> ConvMixer:
    """ConvMixer-256/8; `dim` is the number of channels and `depth` the number of blocks."""
    sizes = {"dim": 256, "depth": 8, "kernel_size": 5, "patch_size": 2, **kwargs}
    return build_model_with_cfg(ConvMixer, "convmixer_tiny", pretrained, **sizes)

"""Compact transformers for small images (Hassani et al., Escaping the Big Data Paradigm with Compact Transformers).

cct_2_3x2_32, cct_4_3x2_32         128 channels; published: 89.2 and 91.5 % on CIFAR-10 after 200 epochs
cct_6_3x1_32, cct_6_3x2_32,
cct_7_3x1_32, cct_7_3x2_32         256 channels
cct_12_3x2_32                      ours: 12 blocks of 96 channels, deep and narrow, with weights: 83.7 % after 20 epochs
vit_lite_6_4_32, vit_lite_7_4_32   256 channels, patches of 4 × 4 pixels, a class token; published: 90.9 % with 6 blocks

CCT has a convolutional tokenizer, no class token, and pools the tokens by a learned weight per token:

    x₀ = MaxPool₃(ReLU(Conv₃ₓ₃(…)))          once or twice; each pool halves the grid
    z  = softmax(g(x_L))ᵀ x_L                g: one linear layer, d to 1

The name CCT-L/k×c means L blocks and c convolutions of size k × k. Blocks are timm's pre-norm blocks without biases in
the query, key and value projections. The authors' code also normalises the residual stream before each feed-forward
network; the paper does not say so, and neither do these hosts.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn  # noqa: F401  # looked up here when loading
from torch import Tensor, nn

from unsmooth.models.default_cfgs import build_vit, settings

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
SIZES: dict[str, dict[str, Any]] = {  # blocks, width, heads, MLP ratio
    "2": {"depth": 2, "embed_dim": 128, "num_heads": 2, "mlp_ratio": 1.0},
    "4": {"depth": 4, "embed_dim": 128, "num_heads": 2, "mlp_ratio": 1.0},
    "6": {"depth": 6, "embed_dim": 256, "num_heads": 4, "mlp_ratio": 2.0},
    "7": {"depth": 7, "embed_dim": 256, "num_heads": 4, "mlp_ratio": 2.0},
    "12": {"depth": 12, "embed_dim": 96, "num_heads": 3, "mlp_ratio": 1.0},
}
CIFAR: dict[str, Any] = {
    "num_classes": 10, "input_size": (3, 32, 32), "crop_pct": 1.0, "mean": CIFAR10_MEAN, "std": CIFAR10_STD,
}  # fmt: skip
CCT = tuple(f"cct_{size}_32" for size in ("2_3x2", "4_3x2", "6_3x1", "6_3x2", "7_3x1", "7_3x2", "12_3x2"))
TRAINED = "cct_12_3x2_32"  # comes with weights, which benchmarks/pretrained_host.py trains and writes
WEIGHTS = Path(__file__).parent / "weights" / f"{TRAINED}.safetensors"
default_cfgs = (
    settings(*(name for name in CCT if name != TRAINED), **CIFAR, first_conv="patch_embed.layers.0.0")
    | settings(TRAINED, tag="cifar10", file=str(WEIGHTS), **CIFAR, first_conv="patch_embed.layers.0.0")
    | settings("vit_lite_6_4_32", "vit_lite_7_4_32", **CIFAR)
)


class ConvTokenizer(nn.Module):
    """Tokens (B, n, embed_dim) of an image: convolution, ReLU and max pooling, once or more."""

    def __init__(
        self, img_size: int | tuple[int, int], in_chans: int, embed_dim: int, convolutions: int,
        output_fmt: str | None = None, device: Any = None, dtype: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patch_size, self.in_chans, self.output_fmt = (2**convolutions, 2**convolutions), in_chans, output_fmt
        self.set_input_size(img_size)
        widths = [in_chans, *[64] * (convolutions - 1), embed_dim]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, padding=1, bias=False, device=device, dtype=dtype),
                    nn.ReLU(),
                    nn.MaxPool2d(3, stride=2, padding=1),
                )
                for a, b in pairwise(widths)
            )
        )

    def set_input_size(self, img_size: int | tuple[int, int] | None = None, patch_size: Any = None) -> None:
        if img_size is not None:
            self.img_size = tuple(img_size) if isinstance(img_size, tuple | list) else (img_size, img_size)
        self.grid_size = self.dynamic_feat_size(self.img_size)
        self.num_patches = math.prod(self.grid_size)

    def feat_ratio(self) -> int:
        return self.patch_size[0]

    def dynamic_feat_size(self, img_size: Any) -> tuple[int, int]:
        """Rows and columns of tokens; each pool rounds up."""
        return math.ceil(img_size[0] / self.patch_size[0]), math.ceil(img_size[1] / self.patch_size[1])

    def forward(self, x: Tensor) -> Tensor:
        # Max pooling of the default layout is 15 times slower on a CPU; the values are the same in both.
        grid = self.layers(x.contiguous(memory_format=torch.channels_last))
        return grid.flatten(2).transpose(1, 2) if self.output_fmt is None else grid.permute(0, 2, 3, 1)


class CompactTransformer(VisionTransformer):  # type: ignore[misc]
    """timm's ViT with a convolutional tokenizer and sequence pooling."""

    def __init__(self, *, convolutions: int = 2, embed_dim: int = 128, **options: Any) -> None:
        embed = partial(ConvTokenizer, convolutions=convolutions)
        super().__init__(
            **{"class_token": False, "global_pool": "", "embed_layer": embed, "embed_dim": embed_dim, **options}
        )
        self.sequence_pool = nn.Linear(embed_dim, 1, device=options.get("device"), dtype=options.get("dtype"))

    def pool(self, x: Tensor, pool_type: str | None = None) -> Tensor:
        weights = self.sequence_pool(x).softmax(dim=1)
        return (weights.transpose(1, 2) @ x).squeeze(1)


def _cct(name: str, pretrained: bool, **kwargs: Any) -> CompactTransformer:
    _, size, tokenizer, side = name.split("_")
    sizes = {**SIZES[size], "convolutions": int(tokenizer[-1]), "img_size": int(side), "qkv_bias": False}
    return build_vit(CompactTransformer, name, pretrained, **{**sizes, **kwargs})


def _vit_lite(name: str, pretrained: bool, **kwargs: Any) -> VisionTransformer:
    _, _, size, patch, side = name.split("_")
    sizes = {**SIZES[size], "patch_size": int(patch), "img_size": int(side), "qkv_bias": False}
    return build_vit(VisionTransformer, name, pretrained, **{**sizes, **kwargs})


@register_model  # type: ignore[untyped-decorator]
def cct_2_3x2_32(pretrained: bool = False, **kwargs: Any) -> CompactTransformer:
    """CCT-2/3x2."""
    return _cct("cct_2_3x2_32", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def cct_4_3x2_32(pretrained: bool = False, **kwargs: Any) -> CompactTransformer:
    """CCT-4/3x2."""
    return _cct("cct_4_3x2_32", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def cct_6_3x1_32(pretrained: bool = False, **kwargs: Any) -> CompactTransformer:
    """CCT-6/3x1."""
    return _cct("cct_6_3x1_32", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def cct_6_3x2_32(pretrained: bool = False, **kwargs: Any) -> CompactTransformer:
    """CCT-6/3x2."""
    return _cct("cct_6_3x2_32", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def cct_7_3x1_32(pretrained: bool = False, **kwargs: Any) -> CompactTransformer:
    """CCT-7/3x1."""
    return _cct("cct_7_3x1_32", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def cct_7_3x2_32(pretrained: bool = False, **kwargs: Any) -> CompactTransformer:
    """CCT-7/3x2."""
    return _cct("cct_7_3x2_32", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def cct_12_3x2_32(pretrained: bool = False, **kwargs: Any) -> CompactTransformer:
    """Twelve blocks of 96 channels on 64 tokens: a small host that is deep enough to diagnose."""
    return _cct("cct_12_3x2_32", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def vit_lite_6_4_32(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT-Lite-6/4."""
    return _vit_lite("vit_lite_6_4_32", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def vit_lite_7_4_32(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT-Lite-7/4."""
    return _vit_lite("vit_lite_7_4_32", pretrained, **kwargs)

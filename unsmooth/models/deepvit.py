"""DeepViT (Zhou et al., DeepViT: Towards Deeper Vision Transformer, 2021): attention whose maps are mixed across heads.

    Re-Attention(Q, K, V) = Norm(Θᵀ softmax(QKᵀ/√d)) V,   Θ ∈ R^{H×H} learned

Norm is a BatchNorm over heads, so the rows of the map do not sum to one. Parameter names are the authors'.

deepvit_small, deepvit_large   the published models: convolutions before the patch embedding, Re-attention in the last
                               5 of 16 and 12 of 32 blocks, and branch outputs doubled (`branch_scale=0.5`)
deepvit_patch16_224            the ablation of the paper: width 384, 12 heads, Re-attention in every block;
                               `depth=16|24|32`, and `re_attention=0` for the plain ViT of the ablation

`re_attention` is the number of last blocks with Re-attention (default: all). The other differences from a plain ViT are
options too: `conv_stem`, `branch_scale`, `scale_maps` (the normalised map times 1/√d, in deepvit_small).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from timm.layers import Attention, PatchEmbed
from timm.models import register_model
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn  # noqa: F401  # looked up here when loading
from torch import Tensor, nn
from torch.nn import functional as F

from unsmooth.models.default_cfgs import build_vit, settings

HALF: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # normalisation of the authors
default_cfgs = {
    **settings("deepvit_small", "deepvit_large", **HALF, first_conv="patch_embed.conv1"),
    **settings("deepvit_patch16_224", **HALF),
}


class ReAttention(Attention):  # type: ignore[misc]
    """Attention whose map passes a 1×1 convolution over heads and a norm before the product with the values."""

    def __init__(self, dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        factory: dict[str, Any] = {name: options.get(name) for name in ("device", "dtype")}
        self.reatten_matrix = nn.Conv2d(num_heads, num_heads, 1, **factory)
        self.var_norm = nn.BatchNorm2d(num_heads, **factory)
        self.map_scale = 1.0

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1)
        weights = self.var_norm(self.reatten_matrix(self.attn_drop(weights))) * self.map_scale
        mixed = (weights @ v).transpose(1, 2).flatten(2)
        out: Tensor = self.proj_drop(self.proj(mixed))
        return out


class DeepBlock(Block):  # type: ignore[misc]
    """A block with plain attention or Re-attention. Its branches read r·x, and 1/r times their output is added."""

    def __init__(self, *, plain: int, branch_scale: float, scale_maps: bool, depth: int, **options: Any) -> None:
        mixed = depth >= plain
        super().__init__(depth=depth, **{**options, **({"attn_layer": ReAttention} if mixed else {})})
        self.branch_scale = branch_scale
        if mixed and scale_maps:
            self.attn.map_scale = self.attn.scale

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        scale = self.branch_scale
        x = x + self.drop_path1(self.attn(self.norm1(x * scale)) / scale)
        return x + self.drop_path2(self.mlp(self.norm2(x * scale)) / scale)


class ConvStem(PatchEmbed):  # type: ignore[misc]
    """Two convolutions at half the resolution, then a patch embedding of half the patch size."""

    def __init__(self, *, patch_size: int, in_chans: int, embed_dim: int, channels: int = 64, **options: Any) -> None:
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim, **options)
        factory: dict[str, Any] = {name: options.get(name) for name in ("device", "dtype")}
        self._modules.pop("proj")  # registered last, in the order of the forward pass
        self.conv1 = nn.Conv2d(in_chans, channels, 7, 2, 3, bias=False, **factory)
        self.bn1 = nn.BatchNorm2d(channels, **factory)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False, **factory)
        self.bn2 = nn.BatchNorm2d(channels, **factory)
        self.proj = nn.Conv2d(channels, embed_dim, patch_size // 2, patch_size // 2, **factory)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.proj(F.relu(self.bn2(self.conv2(x))))
        return x.flatten(2).transpose(1, 2) if self.flatten else x.permute(0, 2, 3, 1)


class DeepViT(VisionTransformer):  # type: ignore[misc]
    """A ViT with Re-attention in its last `re_attention` blocks."""

    def __init__(
        self, *, depth: int = 16, re_attention: int | None = None, conv_stem: bool = False, branch_scale: float = 1.0,
        scale_maps: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        plain = 0 if re_attention is None else depth - min(int(re_attention), depth)
        block = partial(DeepBlock, plain=plain, branch_scale=branch_scale, scale_maps=scale_maps)
        super().__init__(depth=depth, block_fn=block, embed_layer=ConvStem if conv_stem else PatchEmbed, **options)


def _create(name: str, pretrained: bool, **sizes: Any) -> DeepViT:
    return build_vit(DeepViT, name, pretrained, **{"patch_size": 16, "num_heads": 12, "mlp_ratio": 3.0, **sizes})


@register_model  # type: ignore[untyped-decorator]
def deepvit_small(pretrained: bool = False, **kwargs: Any) -> DeepViT:
    """DeepViT-S: 16 blocks of width 396, the last 5 with Re-attention."""
    sizes = {"embed_dim": 396, "depth": 16, "re_attention": 5, "conv_stem": True, "branch_scale": 0.5}
    return _create("deepvit_small", pretrained, **{**sizes, "scale_maps": True, **kwargs})


@register_model  # type: ignore[untyped-decorator]
def deepvit_large(pretrained: bool = False, **kwargs: Any) -> DeepViT:
    """DeepViT-L: 32 blocks of width 420, the last 12 with Re-attention."""
    sizes = {"embed_dim": 420, "depth": 32, "re_attention": 12, "conv_stem": True, "branch_scale": 0.5}
    return _create("deepvit_large", pretrained, **{**sizes, **kwargs})


@register_model  # type: ignore[untyped-decorator]
def deepvit_patch16_224(pretrained: bool = False, **kwargs: Any) -> DeepViT:
    """DeepViT-16 (24, 32 by `depth`) of the paper's ablation; with `re_attention=0` its ViT-16."""
    return _create("deepvit_patch16_224", pretrained, **{"embed_dim": 384, "depth": 16, **kwargs})

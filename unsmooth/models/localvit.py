"""LocalViT (Li et al., LocalViT: Analyzing Locality in Vision Transformers, IROS 2023): DeiT with a convolution in the
feed-forward network.

    F(x) = BN(W₂ SE(hswish(BN(depthwise 3×3(hswish(BN(W₁ x)))))))      on the grid of patch tokens

W₁ and W₂ are 1×1 convolutions. There is no norm before F and no drop path after it. The class token bypasses F: its row
of the branch is zero. A remedy that mixes tokens at the end of the branch (`context_broadcast`) therefore changes the
class token too, as on DeiT; the paper does not describe this case.

The published LocalViT-T squeezes 768 channels to 4 (`reduction=192`); `reduction=4` is the larger LocalViT-T-SE4.
Parameter names are those of the authors' code.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from timm.layers import Attention, DropPath
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn  # noqa: F401  # looked up here when loading
from torch import Tensor, nn
from torch.nn import functional as F

from unsmooth.models.default_cfgs import build_vit, settings

default_cfgs = settings("localvit_tiny_patch16_224")


class SqueezeExcite(nn.Module):
    """Multiplies each channel by a gate computed from the means of all channels."""

    def __init__(self, channels: int, reduction: int, **factory: Any) -> None:
        super().__init__()
        squeezed = max(channels // reduction, 1)
        self.fc = nn.Sequential(
            nn.Linear(channels, squeezed, **factory),
            nn.ReLU(),
            nn.Linear(squeezed, channels, **factory),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.fc(x.mean(dim=(2, 3)))
        return x * gate[:, :, None, None]


class LocalFeedForward(nn.Module):
    """The output of the feed-forward network for tokens (B, n, d); zero for the prefix tokens."""

    def __init__(self, dim: int, hidden: int, reduction: int, **factory: Any) -> None:
        super().__init__()
        self.grid_size, self.prefix = (1, 1), 1  # set by the model
        self.conv = nn.Sequential(
            nn.Conv2d(dim, hidden, 1, bias=False, **factory), nn.BatchNorm2d(hidden, **factory), nn.Hardswish(),
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False, **factory),
            nn.BatchNorm2d(hidden, **factory), nn.Hardswish(),
            SqueezeExcite(hidden, reduction, **factory),
            nn.Conv2d(hidden, dim, 1, bias=False, **factory), nn.BatchNorm2d(dim, **factory),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        patches = x[:, self.prefix :].transpose(1, 2)
        rows = round(math.sqrt(patches.shape[-1] * self.grid_size[0] / self.grid_size[1]))
        out = self.conv(patches.unflatten(-1, (rows, -1))).flatten(2).transpose(1, 2)
        return F.pad(out, (0, 0, self.prefix, 0))


class LocalBlock(nn.Module):
    """Attention as in DeiT, then the local feed-forward network."""

    def __init__(
        self, dim: int, num_heads: int, mlp_ratio: float, qkv_bias: bool, proj_drop: float, attn_drop: float,
        drop_path: float, norm_layer: Any, reduction: int, device: Any = None, dtype: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.norm1 = norm_layer(dim, **factory)
        self.attn = Attention(dim, num_heads, qkv_bias=qkv_bias, attn_drop=attn_drop, proj_drop=proj_drop, **factory)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.conv = LocalFeedForward(dim, int(dim * mlp_ratio), reduction, **factory)

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        out: Tensor = x + self.conv(x)
        return out


class LocalViT(VisionTransformer):  # type: ignore[misc]
    """A ViT whose blocks have a convolution in the feed-forward network."""

    def __init__(self, *, reduction: int = 192, **options: Any) -> None:
        super().__init__(block_fn=partial(LocalBlock, reduction=reduction), **options)
        self._update_blocks()

    def _update_blocks(self) -> None:
        for block in self.blocks:
            block.conv.grid_size, block.conv.prefix = self.patch_embed.grid_size, self.num_prefix_tokens

    def set_input_size(self, *args: Any, **kwargs: Any) -> None:
        super().set_input_size(*args, **kwargs)
        self._update_blocks()


@register_model  # type: ignore[untyped-decorator]
def localvit_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> LocalViT:
    """LocalViT-T: 12 blocks of width 192, 4 heads."""
    sizes = {"patch_size": 16, "embed_dim": 192, "depth": 12, "num_heads": 4, **kwargs}
    return build_vit(LocalViT, "localvit_tiny_patch16_224", pretrained, **sizes)

"""LocalViT (Li et al., LocalViT: Analyzing Locality in Vision Transformers, IROS 2023): DeiT with a convolution in its
feed-forward network.

    F(x) = BN(W₂ SE(hswish(BN(depthwise 3×3(hswish(BN(W₁ x)))))))      on the grid of patch tokens

W₁ and W₂ are 1×1 convolutions. There is no norm in front of F and no drop path behind it. The class token bypasses F:
its row of the branch is zero. A remedy at the end of the branch that mixes tokens (`context_broadcast`) so reaches the
class token too, as it does on DeiT; the paper does not say how it was.

The published LocalViT-T squeezes 768 channels to 4 (`reduction=192`); with `reduction=4` it is the larger
LocalViT-T-SE4. Names of parameters are the authors'.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from timm.layers import Attention, DropPath
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn  # noqa: F401  # loading looks for it here
from torch import Tensor, nn
from torch.nn import functional as F

from unsmooth.models.default_cfgs import build_vit, settings

default_cfgs = settings("localvit_tiny_patch16_224")


class SqueezeExcite(nn.Module):
    """Each channel times a gate made of the means of all channels."""

    def __init__(self, channels: int, reduction: int, **made: Any) -> None:
        super().__init__()
        squeezed = max(channels // reduction, 1)
        self.fc = nn.Sequential(
            nn.Linear(channels, squeezed, **made), nn.ReLU(), nn.Linear(squeezed, channels, **made), nn.Hardsigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.fc(x.mean(dim=(2, 3)))
        return x * gate[:, :, None, None]


class LocalFeedForward(nn.Module):
    """Tokens (B, n, d) to what the feed-forward network adds to them; nothing for tokens in front of the patches."""

    def __init__(self, dim: int, hidden: int, reduction: int, **made: Any) -> None:
        super().__init__()
        self.grid_size, self.prefix = (1, 1), 1  # the model says which
        self.conv = nn.Sequential(
            nn.Conv2d(dim, hidden, 1, bias=False, **made), nn.BatchNorm2d(hidden, **made), nn.Hardswish(),
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False, **made),
            nn.BatchNorm2d(hidden, **made), nn.Hardswish(),
            SqueezeExcite(hidden, reduction, **made),
            nn.Conv2d(hidden, dim, 1, bias=False, **made), nn.BatchNorm2d(dim, **made),
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
        made = {"device": device, "dtype": dtype}
        self.norm1 = norm_layer(dim, **made)
        self.attn = Attention(dim, num_heads, qkv_bias=qkv_bias, attn_drop=attn_drop, proj_drop=proj_drop, **made)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.conv = LocalFeedForward(dim, int(dim * mlp_ratio), reduction, **made)

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        out: Tensor = x + self.conv(x)
        return out


class LocalViT(VisionTransformer):  # type: ignore[misc]
    """A ViT of local blocks."""

    def __init__(self, *, reduction: int = 192, **options: Any) -> None:
        super().__init__(block_fn=partial(LocalBlock, reduction=reduction), **options)
        self._tell_blocks()

    def _tell_blocks(self) -> None:
        for block in self.blocks:
            block.conv.grid_size, block.conv.prefix = self.patch_embed.grid_size, self.num_prefix_tokens

    def set_input_size(self, *args: Any, **kwargs: Any) -> None:
        super().set_input_size(*args, **kwargs)
        self._tell_blocks()


@register_model  # type: ignore[untyped-decorator]
def localvit_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> LocalViT:
    """LocalViT-T: 12 blocks of width 192, 4 heads."""
    sizes = {"patch_size": 16, "embed_dim": 192, "depth": 12, "num_heads": 4, **kwargs}
    return build_vit(LocalViT, "localvit_tiny_patch16_224", pretrained, **sizes)

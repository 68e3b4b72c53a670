"""Tokens-to-token: three soft splits turn an image into tokens, with a small transformer layer after the first two.

A soft split unfolds overlapping windows into tokens. A stride s has windows of 2s−1 and a padding of s//2, which gives
the published 7/4/2 and 3/2/1 (kernel, stride, padding). Patches of p pixels have strides p/4, 2, 2.

The layers between the splits reduce the width of the tokens, so their skip adds the values V instead of the input:

    transformer   y = V + W softmax(QKᵀ/√c) V,   c the input channels of the layer
    performer     y = V + W φ(Q)(φ(K)ᵀV) / (φ(Q)φ(K)ᵀ1 + ε),   φ(x) = exp(Ωx − ‖x‖²/2)/√m,   Ω fixed, m = d/2

and then y + MLP(LN(y)). The performer approximates softmax attention without computing a map.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from timm.layers import Mlp
from torch import Tensor, nn
from torch.nn import functional as F

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.utils.precision import without_autocast

EPSILON = 1e-8


class ValueSkipAttention(nn.Module):
    """One head of softmax attention from `dim` to `width` channels, plus its values."""

    def __init__(self, dim: int, width: int, **factory: Any) -> None:
        super().__init__()
        self.num_heads, self.scale = 1, dim**-0.5
        self.qkv = nn.Linear(dim, 3 * width, bias=False, **factory)
        self.proj = nn.Linear(width, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unsqueeze(1) for each in self.qkv(x).chunk(3, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return v.squeeze(1) + self.proj(out.squeeze(1))


class TokenTransformer(nn.Module):
    """A transformer layer that reduces the width of its tokens."""

    def __init__(self, dim: int, width: int, drop: float = 0.0, **factory: Any) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, **factory)
        self.attn = ValueSkipAttention(dim, width, **factory)
        self.norm2 = nn.LayerNorm(width, **factory)
        self.mlp = Mlp(width, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class TokenPerformer(nn.Module):
    """The same layer with random-feature attention, whose cost is linear in the number of tokens."""

    def __init__(self, dim: int, width: int, drop: float = 0.1, **factory: Any) -> None:
        super().__init__()
        self.features = width // 2
        self.norm1 = nn.LayerNorm(dim, **factory)
        self.kqv = nn.Linear(dim, 3 * width, **factory)
        self.proj, self.dp = nn.Linear(width, width, **factory), nn.Dropout(drop)
        self.norm2 = nn.LayerNorm(width, **factory)
        self.mlp = nn.Sequential(
            nn.Linear(width, width, **factory), nn.GELU(), nn.Linear(width, width, **factory), nn.Dropout(drop)
        )
        rows = nn.init.orthogonal_(torch.empty(self.features, width, **factory)) * math.sqrt(self.features)
        self.w = nn.Parameter(rows, requires_grad=False)

    def kernel(self, x: Tensor) -> Tensor:
        exponents = x @ self.w.t().to(x.dtype) - x.square().sum(dim=-1, keepdim=True) / 2
        return exponents.exp() / math.sqrt(self.features)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Exponentials overflow in half precision. Meta tensors, used for counting operations, have no autocast.
        with without_autocast(q):
            dtype = torch.promote_types(q.dtype, torch.float32)
            q, k = self.kernel(q.to(dtype)), self.kernel(k.to(dtype))
            shares = q / (q @ k.sum(dim=1).unsqueeze(-1) + EPSILON)
            return (shares @ (k.transpose(1, 2) @ v.to(dtype))).to(v.dtype)

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = self.kqv(self.norm1(x)).chunk(3, dim=-1)
        x = v + self.dp(self.proj(self.attend(q, k, v)))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


LAYERS: dict[str, type[nn.Module]] = {"performer": TokenPerformer, "transformer": TokenTransformer}


def soft_split(stride: int) -> nn.Unfold:
    return nn.Unfold(2 * stride - 1, stride=stride, padding=stride // 2)


class TokensToToken(nn.Module):
    """Tokens (B, n, embed_dim) of an image, as a patch embedding for timm's ViT."""

    def __init__(
        self, img_size: int | tuple[int, int], patch_size: int, in_chans: int, embed_dim: int, tokens_type: str,
        token_dim: int, drop: float, output_fmt: str | None = None, device: Any = None, dtype: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        if tokens_type not in LAYERS:
            raise unknown("tokens_type", tokens_type, LAYERS)
        if patch_size % 4:
            raise UnsmoothError(
                f"tokens-to-token needs a patch_size divisible by 4 (got {patch_size}). Use 16, 8 or 4."
            )
        factory = {"device": device, "dtype": dtype}
        self.patch_size, self.in_chans, self.output_fmt = (patch_size, patch_size), in_chans, output_fmt
        self.set_input_size(img_size)
        first = patch_size // 4
        layer = LAYERS[tokens_type]
        self.soft_split0, self.soft_split1, self.soft_split2 = soft_split(first), soft_split(2), soft_split(2)
        self.attention1 = layer(in_chans * (2 * first - 1) ** 2, token_dim, drop, **factory)
        self.attention2 = layer(token_dim * 9, token_dim, drop, **factory)
        self.project = nn.Linear(token_dim * 9, embed_dim, **factory)

    def set_input_size(self, img_size: int | tuple[int, int] | None = None, patch_size: Any = None) -> None:
        if img_size is not None:
            self.img_size = img_size if isinstance(img_size, tuple | list) else (img_size, img_size)
        self.grid_size = self.dynamic_feat_size(self.img_size)
        self.num_patches = math.prod(self.grid_size)

    def feat_ratio(self) -> int:
        return self.patch_size[0]

    def dynamic_feat_size(self, img_size: Any) -> tuple[int, int]:
        return img_size[0] // self.patch_size[0], img_size[1] // self.patch_size[1]

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if height % self.patch_size[0] or width % self.patch_size[1]:
            raise UnsmoothError(
                f"the image size {width} × {height} is not divisible by the patch size {self.patch_size[0]}"
            )
        grid = (height * 4 // self.patch_size[0], width * 4 // self.patch_size[1])
        x = self.attention1(self.soft_split0(x).transpose(1, 2))
        x = self.soft_split1(x.transpose(1, 2).unflatten(-1, grid))
        x = self.attention2(x.transpose(1, 2))
        x = self.soft_split2(x.transpose(1, 2).unflatten(-1, (grid[0] // 2, grid[1] // 2)))
        x = self.project(x.transpose(1, 2))
        return x if self.output_fmt is None else x.unflatten(1, (grid[0] // 4, grid[1] // 4))

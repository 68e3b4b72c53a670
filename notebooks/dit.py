"""A small diffusion transformer (DiT, Peebles and Xie, 2023), as an example of a model of your own.

unsmooth check notebooks/dit.py:dit
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FREQUENCIES = 32


class Block(nn.Module):
    """Attention and MLP whose norms and gates depend on the condition (adaLN-Zero)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(condition)).unsqueeze(1).chunk(6, -1)
        x = x + gate1 * self.attn(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.num_heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class DiT(nn.Module):
    """Predicts the noise in a latent image (4, 32, 32) for a timestep and a class."""

    def __init__(self, depth: int, width: int, heads: int, patch_size: int, num_classes: int):
        super().__init__()
        self.img_size, self.patch_size = 32, patch_size
        self.patch_embed = nn.Conv2d(4, width, patch_size, patch_size)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, (32 // patch_size) ** 2, width))
        self.time = nn.Sequential(nn.Linear(2 * FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(num_classes, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4 * patch_size**2)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        angles = t.unsqueeze(1) * 10000 ** (-torch.arange(FREQUENCIES, device=t.device) / FREQUENCIES)
        condition = self.time(torch.cat([angles.cos(), angles.sin()], 1).to(x.dtype)) + self.label(y)
        x = self.patch_embed(x).flatten(2).mT + self.pos_embed
        for block in self.blocks:
            x = block(x, condition)
        return F.fold(self.head(self.norm(x)).mT, (32, 32), self.patch_size, stride=self.patch_size)


def dit(depth: int = 2, width: int = 96, heads: int = 3, patch_size: int = 4, num_classes: int = 10) -> nn.Module:
    return DiT(depth, width, heads, patch_size, num_classes)

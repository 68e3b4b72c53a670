"""The remedies as in the code of their papers, on timm's DeiT: explicit maps, dense Θ, full SVD.

`benchmarks/remedies.py` compares their speed with that of the library, which computes the same functions differently.
"""

# mypy: disable-error-code="union-attr, operator, index, arg-type, call-overload"
# (torch types what a module holds as Tensor | Module)

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.remedies.kernels.circulant import dense

Map = Callable[[Tensor, Tensor, Tensor], Tensor]


def explicit_attention(model: nn.Module, weights: Callable[[Tensor, Tensor, nn.Module], Tensor]) -> nn.Module:
    """Replace the attention of each block by one with the explicit map `weights(q, k, module)`."""
    for block in model.blocks:
        attn = block.attn

        def forward(x: Tensor, attn_mask: None = None, is_causal: bool = False, attn: nn.Module = attn) -> Tensor:
            b, n, c = x.shape
            q, k, v = attn.qkv(x).reshape(b, n, 3, attn.num_heads, -1).permute(2, 0, 3, 1, 4)
            out = weights(q, k, attn) @ v
            return attn.proj(out.transpose(1, 2).reshape(b, n, c))

        attn.forward = forward
    return model


def attn_scale(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        block.attn.lamb = nn.Parameter(torch.full((block.attn.num_heads,), 0.1))

    def weights(q: Tensor, k: Tensor, attn: nn.Module) -> Tensor:
        a = (q * attn.scale @ k.transpose(-2, -1)).softmax(-1)
        low = torch.ones(a.shape[-2:], device=a.device) / a.shape[-1]
        return low[None, None] + (a - low[None, None]) * (1 + attn.lamb[None, :, None, None])

    return explicit_attention(model, weights)


def feat_scale(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        s, t = (nn.Parameter(torch.full((model.embed_dim,), 0.1)) for _ in range(2))

        def hook(module: nn.Module, args: tuple[Tensor], out: Tensor, s: Tensor = s, t: Tensor = t) -> Tensor:
            low = out.mean(-2, keepdim=True)
            high = out - low
            return low * (1 + s) + high * (1 + t)

        block.attn.register_forward_hook(hook)
    return model


def context_broadcast(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda module, args, x: (x + x.mean(dim=1, keepdim=True)) * 0.5)
    return model


def augmented_shortcut(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        for branch in (block.attn, block.mlp):
            vectors = nn.Parameter(torch.randn(2, 4, 4, model.embed_dim // 4) * 0.05)
            bias = nn.Parameter(torch.zeros(2, model.embed_dim))

            def hook(module: nn.Module, args: tuple[Tensor], out: Tensor, vectors: Tensor = vectors,
                     bias: Tensor = bias) -> Tensor:  # fmt: skip
                for theta, shift in zip(dense(vectors), bias, strict=True):
                    out = out + F.gelu(F.linear(args[0], theta, shift))
                return out

            branch.register_forward_hook(hook)
    return model


def gray_svd(model: nn.Module) -> nn.Module:
    def hook(module: nn.Module, args: tuple[Tensor], x: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        top = s[:, :1]
        return (u * (top * (s / top) ** 0.65).unsqueeze(1)) @ vh

    model.patch_embed.register_forward_hook(hook)
    return model


def _dct(x: Tensor) -> Tensor:
    """DCT-II along the last axis, by one FFT of the reordered signal."""
    n = x.shape[-1]
    folded = torch.cat((x[..., ::2], x[..., 1::2].flip(-1)), -1)
    turn = torch.exp(-1j * math.pi * torch.arange(n) / (2 * n))
    return (torch.fft.fft(folded) * turn).real * math.sqrt(2 / n)


def _idct(x: Tensor) -> Tensor:
    n = x.shape[-1]
    turn = torch.exp(1j * math.pi * torch.arange(n) / (2 * n))
    mirrored = torch.cat((torch.zeros_like(x[..., :1]), x[..., 1:].flip(-1)), -1)
    folded = torch.fft.ifft(torch.complex(x, -mirrored) * turn).real * math.sqrt(n / 2)
    out = torch.empty_like(x)
    out[..., ::2] = folded[..., : (n + 1) // 2]
    out[..., 1::2] = folded[..., (n + 1) // 2 :].flip(-1)
    return out


def gray_dct(model: nn.Module) -> nn.Module:
    def hook(module: nn.Module, args: tuple[Tensor], x: Tensor) -> Tensor:
        spectrum = _dct(_dct(x).mT).mT
        top = spectrum.abs().amax((-2, -1), keepdim=True)
        spectrum = spectrum.sign() * (spectrum.abs() / top) ** 0.95 * top
        return _idct(_idct(spectrum.mT).mT)

    model.patch_embed.register_forward_hook(hook)
    return model


def adder_attention(model: nn.Module) -> nn.Module:
    def weights(q: Tensor, k: Tensor, attn: nn.Module) -> Tensor:
        scores = -(q.unsqueeze(-2) - k.unsqueeze(-3)).abs().sum(-1)
        spread = math.sqrt(2 * (1 - 2 / math.pi) * q.shape[-1])
        return (scores / spread).softmax(-1) + torch.eye(q.shape[-2])

    return explicit_attention(model, weights)


def l2_attention(model: nn.Module) -> nn.Module:
    def weights(q: Tensor, k: Tensor, attn: nn.Module) -> Tensor:
        return (-torch.cdist(q, k).square() * attn.scale).softmax(-1)

    return explicit_attention(model, weights)


PUBLISHED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "attn_scale": attn_scale,
    "feat_scale": feat_scale,
    "context_broadcast": context_broadcast,
    "augmented_shortcut": augmented_shortcut,
    "token_graying": gray_dct,
    "token_graying(transform=svd)": gray_svd,
    "adder_attention": adder_attention,
    "l2_attention": l2_attention,
}

"""Token graying (Ji et al., Always Skip Attention, ICCV 2025): better conditioned patch tokens.

    svd   X = UΣVᵀ          →  σ_max · U(Σ/σ_max)^ε Vᵀ
    dct   X̂ = D_n X D_dᵀ    →  D_nᵀ [ m · sign(X̂)(|X̂|/m)^ε ] D_d,   m = max|X̂|

once, on the patch tokens after patch embedding, before class token and position embedding. The paper calls them SVDTG
and DCTTG. ε = 1 is the identity. For the svd form log κ(X̃) = ε·log κ(X) exactly; the dct form is cheaper and not
monotone in κ. No parameters. Figures 7 and 8 show the Jacobian of an attention block, better conditioned for lower ε:
vital `jacobian_spectrum`.

The svd form computes no SVD: U(Σ/σ_max)^ε Vᵀ = M X with M a power of the smaller Gram matrix. Its eigenvectors are
computed in double precision, which resolves singular values down to 1e-7 of the largest. Its gradient uses divided
differences (Daleckii–Krein), which stay finite for equal eigenvalues.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.errors import NotApplicable
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.patch_embed import HookPoint, PatchEmbedding
from unsmooth.remedies.base import Placement, Remedy, TokenHook, register
from unsmooth.utils.options import option, options
from unsmooth.utils.precision import without_autocast

DENSE = 1024  # largest DCT that is a product with a matrix; a larger one is an FFT, whose memory is linear


@options
class TokenGrayingOptions:
    transform: Literal["dct", "svd"] = option("spectrum that is raised to the power", default="dct")
    epsilon: float | None = option("power; default: 0.95 for dct, 0.65 for svd", default=None, above=0.0, high=1.0)
    where: Literal["embedding", "patches"] = option(
        "embedded patch tokens, or raw patches of the image", default="embedding"
    )
    rescale: bool = option("multiply by the largest value again, so that epsilon=1 is the identity", default=True)

    @property
    def power(self) -> float:
        return self.epsilon or {"dct": 0.95, "svd": 0.65}[self.transform]


def dct_matrix(size: int, **kind: Any) -> Tensor:
    """The orthonormal DCT-II as a matrix: D x is the transform, Dᵀ its inverse."""
    n = torch.arange(size, dtype=torch.float64, device="cpu")  # some devices have no double precision
    if not size:
        return torch.empty(0, 0).to(**kind)
    matrix = torch.cos(math.pi / size * (n + 0.5) * n.unsqueeze(1)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.to(**kind)


def dct(x: Tensor, matrix: Tensor | None) -> Tensor:
    """The orthonormal DCT-II of the columns of x, by its matrix, or without one by an FFT (Makhoul, 1980)."""
    if matrix is not None:
        return matrix @ x
    reordered = torch.cat([x[..., ::2, :], x[..., 1::2, :].flip(-2)], dim=-2)
    scale, phase = _scale_and_phase(x)
    return (torch.fft.fft(reordered, dim=-2) * phase).real * scale


def inverse_dct(y: Tensor, matrix: Tensor | None) -> Tensor:
    """The inverse of `dct`."""
    if matrix is not None:
        return matrix.mT @ y
    scale, phase = _scale_and_phase(y)
    y = y / scale
    mirrored = torch.cat([torch.zeros_like(y[..., :1, :]), y[..., 1:, :].flip(-2)], dim=-2)
    reordered = torch.fft.ifft(torch.complex(y, -mirrored) * phase.conj(), dim=-2).real
    place = torch.cat([torch.arange(0, y.shape[-2], 2), torch.arange(1, y.shape[-2], 2).flip(0)]).to(y.device)
    return reordered[..., place.argsort(), :]


def _scale_and_phase(x: Tensor) -> tuple[Tensor, Tensor]:
    """Factors that make an FFT of reordered rows an orthonormal DCT-II."""
    size = x.shape[-2]
    k = torch.arange(size, dtype=x.dtype, device=x.device).unsqueeze(1)
    scale = torch.full_like(k, math.sqrt(2 / size))
    scale[0] = math.sqrt(1 / size)
    return scale, torch.polar(torch.ones_like(k), -math.pi / (2 * size) * k)


def gray_dct(x: Tensor, epsilon: float, rescale: bool, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """Raise the magnitudes of the two-dimensional DCT of tokens × channels to the power ε."""
    spectrum = dct(dct(x, rows).mT, columns).mT
    magnitude = spectrum.abs()
    peak = magnitude.amax(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    # Clamping to the smallest normal number keeps the gradient of the power finite at zeros of the spectrum.
    power = (magnitude / peak).clamp_min(torch.finfo(x.dtype).tiny).pow(epsilon)
    grayed = spectrum.sign() * (power * peak if rescale else power)
    return inverse_dct(inverse_dct(grayed, rows).mT, columns).mT


class GramPower(torch.autograd.Function):
    """M = (G/λ_max)^p for a symmetric positive semi-definite G, p ≤ 0, zero on its numerical null space."""

    @staticmethod
    def forward(gram: Tensor, power: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(gram)
        peak = values[..., -1:].clamp_min(torch.finfo(gram.dtype).tiny)
        ratio = values / peak
        floor = gram.shape[-1] * torch.finfo(gram.dtype).eps
        gains = torch.where(ratio > floor, ratio.clamp_min(floor).pow(power), 0)
        return (vectors * gains.unsqueeze(-2)) @ vectors.mT, values, vectors, gains

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, ...]) -> None:
        _, values, vectors, gains = output
        ctx.save_for_backward(values, vectors, gains)
        ctx.mark_non_differentiable(values, vectors, gains)
        ctx.power = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *unused: Tensor) -> tuple[Tensor, None]:
        values, vectors, gains = ctx.saved_tensors
        peak = values[..., -1:].clamp_min(torch.finfo(values.dtype).tiny)
        ratio, power = values / peak, ctx.power
        alive = (gains > 0).unsqueeze(-1) & (gains > 0).unsqueeze(-2)
        a, b = ratio.unsqueeze(-1), ratio.unsqueeze(-2)
        near = (a - b).abs() <= 1e-6 * torch.maximum(a.abs(), b.abs())
        slope = power * ((a + b) / 2).clamp_min(torch.finfo(values.dtype).eps).pow(power - 1)
        difference = (gains.unsqueeze(-1) - gains.unsqueeze(-2)) / torch.where(near, 1, a - b)
        divided = torch.where(alive, torch.where(near, slope, difference), 0)
        inner = vectors.mT @ ((grad + grad.mT) / 2) @ vectors
        through_map = vectors @ (divided * inner) @ vectors.mT / peak.unsqueeze(-1)
        # G/λ_max also depends on λ_max, along the last eigenvector.
        derivative = power * gains * inner.diagonal(dim1=-2, dim2=-1)
        last = vectors[..., -1:]
        through_peak = -derivative.sum(-1, keepdim=True).unsqueeze(-1) / peak.unsqueeze(-1) * (last @ last.mT)
        return through_map + through_peak, None


def gray_svd(x: Tensor, epsilon: float, rescale: bool) -> Tensor:
    """Raise the singular values of tokens × channels, divided by the largest, to the power ε."""
    with without_autocast(x):
        wide = x.double()
        wide_rows = x.shape[-2] <= x.shape[-1]
        gram = wide @ wide.mT if wide_rows else wide.mT @ wide
        power, values, _, _ = GramPower.apply(gram, (epsilon - 1) / 2)
        grayed = power @ wide if wide_rows else wide @ power
        if not rescale:
            largest = (
                torch.linalg.matrix_norm(wide, ord=2, keepdim=True)
                if wide.requires_grad
                else values[..., -1:, None].sqrt()
            )
            grayed = grayed / torch.where(largest > 0, largest, 1)
        return grayed.to(x.dtype)


class Graying(TokenHook):
    """Grays tokens × channels, in any token layout."""

    rows: Tensor
    columns: Tensor

    def __init__(self, transform: str, epsilon: float, rescale: bool, tokens: int, channels: int, channels_last: bool):
        super().__init__()
        self.transform, self.epsilon, self.rescale, self.channels_last = transform, epsilon, rescale, channels_last
        if transform == "dct":
            # For the usual number of tokens; a matrix for another number is computed in the forward pass.
            for name, size in (("rows", tokens), ("columns", channels)):
                self.register_buffer(name, dct_matrix(size if size <= DENSE else 0), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Graying:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.transform == "dct":  # a host in half precision is grayed in single precision
            dtype = torch.promote_types(self.rows.dtype, torch.float32)
            for name in ("rows", "columns"):
                matrix = getattr(self, name)
                setattr(self, name, dct_matrix(matrix.shape[0], dtype=dtype, device=matrix.device))
        return self

    def gray(self, x: Tensor) -> Tensor:
        if self.transform == "svd":
            return gray_svd(x, self.epsilon, self.rescale)
        with without_autocast(x):
            wide = x if x.dtype == torch.float64 else x.float()
            kind: dict[str, Any] = {"dtype": wide.dtype, "device": wide.device}
            rows = self.rows.to(**kind) if len(self.rows) else None
            if x.shape[-2] > DENSE:
                rows = None
            elif rows is None or len(rows) != x.shape[-2]:
                rows = dct_matrix(x.shape[-2], **kind)
            columns = self.columns.to(**kind) if len(self.columns) else None
            return gray_dct(wide, self.epsilon, self.rescale, rows, columns).to(x.dtype)

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        if x.ndim == 3:
            return self.gray(x)
        if self.channels_last:
            return self.gray(x.flatten(1, -2)).view_as(x)
        return self.gray(x.flatten(2).mT).mT.reshape(x.shape)


class PatchGraying(Graying):
    """Grays patches × pixels of the image."""

    def __init__(self, transform: str, epsilon: float, rescale: bool, patch_embed: PatchEmbedding):
        pixels = patch_embed.image_channels * math.prod(patch_embed.kernel)
        super().__init__(transform, epsilon, rescale, patch_embed.tokens, pixels, True)
        self.kernel = patch_embed.kernel

    def treat(self, x: Tensor, source: Tensor | None) -> Tensor:
        high, wide = (side - side % step for side, step in zip(x.shape[-2:], self.kernel, strict=True))
        patches = F.unfold(x[..., :high, :wide], self.kernel, stride=self.kernel).mT
        return F.fold(self.gray(patches).mT, (high, wide), self.kernel, stride=self.kernel)


@register
class TokenGraying(Remedy[TokenGrayingOptions]):
    key = "token_graying"
    title = "Token graying"
    paper = "Ji et al., Always Skip Attention, ICCV 2025"
    acts_on = "patch tokens, once"
    Options = TokenGrayingOptions
    departures = (
        "The supplement has no formula. The svd rule is that of a third party's account; the dct rule (sign and "
        "magnitude, divided by the largest), the rescaling and the place (once, on the patch tokens before class token "
        "and position embedding) are our reading."
    )
    once = True

    def exact(self, options: TokenGrayingOptions) -> bool:
        return options.epsilon == 1.0 and options.rescale

    def place(self, block: Block, anatomy: Anatomy, options: TokenGrayingOptions) -> list[Placement]:
        embed, gray = anatomy.patch_embed, (options.transform, options.power, options.rescale)
        if embed is None:
            raise NotApplicable("it has no convolution that splits the image into patches")
        if options.where == "embedding":
            point = embed.hook_point
            return [Placement(point, Graying(*gray, embed.tokens, embed.channels, point.channels_last))]
        if len(embed.kernel) != 2:
            raise NotApplicable("its patches are not cut from an image by a convolution; use where=embedding")
        if embed.overlap:
            raise NotApplicable(
                "its patches overlap, so the image cannot be reassembled from them; use where=embedding"
            )
        return [Placement(HookPoint(embed.convolution, "input"), PatchGraying(*gray, embed))]

    def flops(self, block: Block, anatomy: Anatomy, options: TokenGrayingOptions) -> int:
        embed = anatomy.patch_embed
        assert embed is not None
        n = embed.tokens
        d = embed.channels if options.where == "embedding" else embed.image_channels * math.prod(embed.kernel)
        if options.transform == "dct":
            return sum(4 * n * d * (size if size <= DENSE else 5 * math.ceil(math.log2(size))) for size in (n, d))
        small, large = min(n, d), max(n, d)
        return 4 * small * small * large + 9 * small**3  # two products, and 9n³ for the eigenvectors

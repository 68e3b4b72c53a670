"""Block-circulant projections and the augmented shortcut built from them.

"Augmented Shortcuts for Vision Transformers" (NeurIPS 2021) adds ``sum_t GELU(x Theta_t + bias_t)`` to a
residual branch.  Each ``Theta_t`` is a ``b x b`` grid of circulant ``m x m`` blocks, ``m = d / b``, block
``(i, j)`` being given by one vector ``c^{ij}``::

    y^i = sum_j C^{ij} x^j = IFFT(sum_j FFT(c^{ij}) * FFT(x^j)),    C^{ij}[r, s] = c^{ij}[(r - s) mod m]

All ``Theta`` together are one tensor ``vectors [T, b, b, m]`` with ``bias [T, d]``.

``augment`` needs a quarter of the multiplications of the dense form if ``m`` is divisible by 8
(`unsmooth.remedies.kernels.circulant_factors`). Unlike the FFT form, it stays real, so it runs in bfloat16 and can be
exported. Otherwise circulants are split in halves, ``z^m - 1 = (z^{m/2} - 1) (z^{m/2} + 1)``, as often as possible. Few
channels are multiplied with the dense matrices, which takes less time there.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from unsmooth.remedies.kernels import circulant_dense, circulant_factors

__all__ = ["Prepared", "apply_fft", "augment", "dense", "prepare"]

# Multiply-adds per level, in units of T d^2: 1, 1/2, 3/8, 11/32, 43/128, ... -> 1/3.
# Past the second level, the extra passes over memory cost as much as the products they save.
_MAX_LEVELS = 2
_PLAIN = (Tensor, nn.Parameter)
_FEW_CHANNELS = 96  # up to which the dense product takes less time than sums before and after smaller ones


class Prepared(NamedTuple):
    """Matrices of the split product."""

    weights: tuple[Tensor, ...]
    """For four factors, `circulant_factors.matrices`. Or one dense matrix ``[d, T d]``, with columns ``(t, i, r)``.

    Otherwise skew-circulant parts from large to small, then the circulant rest: per factor of size ``h``, a matrix
    ``[b h, T b h]`` to be multiplied from the right. Its columns are ordered ``(piece, t, i, r)``, pieces of the
    smallest factor's size ``q``: so every butterfly after the products runs over long rows, and only the last sum
    restores the order of the channels."""
    blocks: int
    """Number ``b`` of slices."""
    shift: Tensor | None = None
    """For four factors, `circulant_factors.shift` of the bias, if it was given."""


def dense(vectors: Tensor) -> Tensor:
    """Matrices ``[T, d, d]`` of ``vectors [T, b, b, m]``: ``y_t = F.linear(x, dense(vectors)[t])``."""
    t, b, _, m = vectors.shape
    return _toeplitz(vectors, 1).t().reshape(t, b * m, b * m)


def apply_fft(x: Tensor, vectors: Tensor) -> Tensor:
    """Projections ``[..., T, d]`` of ``x [..., d]``: ``y_t^i = IFFT(sum_j FFT(c_t^{ij}) * FFT(x^j))``."""
    b, m = vectors.shape[-2:]
    spectrum = torch.fft.rfft(x.unflatten(-1, (b, m)))
    product = torch.einsum("tijf,...jf->...tif", torch.fft.rfft(vectors), spectrum)
    y: Tensor = torch.fft.irfft(product, n=m)
    return y.flatten(-2)


def prepare(vectors: Tensor, bias: Tensor | None = None) -> Prepared:
    """Matrices for ``augment`` from ``vectors [T, b, b, m]``; can be reused as long as these and the bias stay."""
    t, b, _, m = vectors.shape
    if b * m <= _FEW_CHANNELS:
        return Prepared((_toeplitz(vectors, 1),), b)
    if m % 8 == 0:
        shift = None if bias is None else circulant_factors.shift(bias, b)
        return Prepared((circulant_factors.matrices(vectors),), b, shift)
    levels = 0
    while levels < _MAX_LEVELS and m % 2 ** (levels + 1) == 0:
        levels += 1
    *skew, circulant = _split(vectors, levels, 0.5)
    matrices = [*(_toeplitz(c, -1) for c in skew), _toeplitz(circulant, 1)]
    rows = [matrix.view(len(matrix), t * b, -1) for matrix in matrices]
    return Prepared(tuple(_in_pieces(row, m >> levels) for row in rows), b)


def augment(x: Tensor, vectors: Tensor | Prepared, bias: Tensor, onto: Tensor | None = None) -> Tensor:
    """``onto + sum_t GELU(x Theta_t + bias_t)`` for ``x [..., d]`` and ``bias [T, d]``; GELU is the exact one.

    ``vectors`` is either the ``[T, b, b, m]`` parameter or the result of ``prepare``, with the same bias.
    """
    if x.shape[-1] != bias.shape[-1]:
        raise ValueError(f"expected tokens of {bias.shape[-1]} channels, got {x.shape[-1]}")
    # In place, and with a backward pass of our own, only where each operation runs as it is written.
    eager = not (is_traced() or x.is_meta or torch.is_autocast_enabled(x.device.type))
    if onto is not None and not (eager and onto.dtype == x.dtype and onto.shape == x.shape):
        return onto + augment(x, vectors, bias)
    in_place = eager and (not torch.is_grad_enabled() or torch.is_inference_mode_enabled())
    if not isinstance(vectors, Prepared):
        plain = type(x) in _PLAIN and type(vectors) in _PLAIN  # not fake, sharded or quantized
        if eager and plain and not in_place and x.shape[-1] <= _FEW_CHANNELS:
            return circulant_dense.Augment.apply(x, vectors, bias, onto)
        vectors = prepare(vectors)
    weights, b = vectors.weights, vectors.blocks
    if len(weights) > 1:
        paths = _by_halves(x, weights, bias, b, in_place)
    elif weights[0].ndim == 2:
        if in_place:
            return circulant_dense.augment_in_place(x, weights[0], bias, onto)
        paths = circulant_dense.augment(x, weights[0], bias)
    else:
        shift = circulant_factors.shift(bias, b) if vectors.shift is None else vectors.shift
        if not eager:
            return circulant_factors.augment(x, weights[0], shift, len(bias), b)
        if in_place:
            return circulant_factors.augment_in_chunks(x, weights[0], shift, len(bias), b, onto)
        return circulant_factors.Augment.apply(x, weights[0], shift, len(bias), b, onto)
    if onto is None:
        return paths
    return paths.add_(onto) if in_place else onto + paths  # nobody else has the paths


def is_traced() -> bool:
    """Whether a compiler, a trace, a transform of `torch.func` or forward-mode gradients see each operation."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def _by_halves(x: Tensor, weights: tuple[Tensor, ...], bias: Tensor, b: int, in_place: bool) -> Tensor:
    t, d = bias.shape
    levels = len(weights) - 1
    q = d // b >> levels
    parts = _split(x.reshape(-1, b, d // b), levels)
    products = [
        torch.mm(part.reshape(-1, len(weight)), weight).unflatten(-1, (-1, t * b * q))
        for part, weight in zip(parts, weights, strict=True)
    ]
    shift = _in_pieces(bias.reshape(1, t * b, -1), q).view(1, -1, t * b * q)
    y = _merge(products, in_place)
    shift = shift.to(y.dtype)  # under autocast the products are narrower than the bias
    y = torch.ops.aten.gelu_(y.add_(shift)) if in_place else F.gelu(y + shift)
    first, *others = y.unflatten(-1, (t, b, q)).unbind(2)  # adding slices is faster than reducing an axis this short
    if in_place and others:
        out = y.new_empty(len(y), b, 2**levels, q)
        reduce(lambda sum_, path: torch.add(sum_, path, out=out.transpose(1, 2)), others, first)
        return out.view(x.shape)
    return reduce(torch.add, others, first).transpose(1, 2).reshape(x.shape)


def _split(x: Tensor, levels: int, gain: float = 1.0) -> list[Tensor]:
    """Residues of the last axis modulo ``z^{m/2} + 1, z^{m/4} + 1, ..., z^{m/2^levels} - 1``: ``lo -+ hi``.

    Each level multiplies by ``gain``.  With 1/2, ``_merge`` is the inverse. The weights, which are small, are split
    with 1/2, and the tokens with 1.
    """
    parts = []
    for _ in range(levels):
        lo, hi = (x if gain == 1.0 else gain * x).chunk(2, -1)
        parts.append(lo - hi)
        x = lo + hi
    return [*parts, x]


def _merge(parts: list[Tensor], in_place: bool) -> Tensor:
    """From halved residues ``[n, pieces, width]`` back to all pieces in order: ``lo = u + v``, ``hi = u - v``."""
    *skew, u = parts
    for v in reversed(skew):
        if in_place:
            both = u.new_empty(len(u), 2, *u.shape[1:])
            torch.add(u, v, out=both[:, 0])
            torch.sub(u, v, out=both[:, 1])
        else:
            both = torch.stack((u + v, u - v), 1)
        u = both.flatten(1, 2)
    return u


def _in_pieces(rows: Tensor, size: int) -> Tensor:
    """``[n, slices, h]`` as ``[n, (piece, slice, r)]``, pieces of ``size`` along the last axis."""
    return rows.unflatten(-1, (-1, size)).transpose(1, 2).flatten(1)


def _toeplitz(c: Tensor, twist: int) -> Tensor:
    """Products with ``c [T, b, b, h]`` modulo ``z^h - twist`` as a matrix ``[b h, T b h]``, input by output.

    ``W[(j, s), (t, i, r)] = c_t^{ij}[r - s]`` for ``r >= s``, else ``twist c_t^{ij}[h + r - s]``.
    """
    t, b, _, h = c.shape
    c = c.permute(2, 0, 1, 3)
    wrapped = c[..., 1:] if twist == 1 else -c[..., 1:]
    # Windows of [wrapped, c] are the rows in reverse; the flip is the only pass that writes the matrix.
    windows = torch.cat((wrapped, c), -1).unfold(-1, h, 1)
    return windows.permute(0, 3, 1, 2, 4).flip(1).reshape(b * h, t * b * h)

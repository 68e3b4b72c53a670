"""Block-circulant projections and the augmented shortcut built from them.

"Augmented Shortcuts for Vision Transformers" (NeurIPS 2021) adds ``sum_t GELU(x Theta_t + bias_t)`` to a
residual branch.  Each ``Theta_t`` is a ``b x b`` grid of circulant ``m x m`` blocks, ``m = d / b``, block
``(i, j)`` being given by one vector ``c^{ij}``::

    y^i = sum_j C^{ij} x^j = IFFT(sum_j FFT(c^{ij}) * FFT(x^j)),    C^{ij}[r, s] = c^{ij}[(r - s) mod m]

All ``Theta`` together are one tensor ``vectors [T, b, b, m]`` with ``bias [T, d]``.

A circulant product is a polynomial product modulo ``z^m - 1``, which has real factors of equal size ``q = m/4``::

    z^m - 1 = (z^q - 1) (z^q + 1) (z^q + √2 z^{q/2} + 1) (z^q - √2 z^{q/2} + 1)

``augment`` computes the four residues of the tokens by sums of slices, multiplies each of them with every ``Theta`` at
once, all in one batched matrix product, and puts the results together by sums again: a quarter of the multiplications
of the dense form. Unlike the FFT form, it stays real, so it runs in bfloat16 and can be exported. If ``m`` is not
divisible by 8, circulants are split in halves, ``(z^{m/2} - 1) (z^{m/2} + 1)``, as often as possible. Few channels are
multiplied with the dense matrices, which takes less time there.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Prepared", "apply_fft", "augment", "dense", "prepare"]

# Multiply-adds per level, in units of T d^2: 1, 1/2, 3/8, 11/32, 43/128, ... -> 1/3.
# Past the second level, the extra passes over memory cost as much as the products they save.
_MAX_LEVELS = 2
_FEW_CHANNELS = 96  # up to which the dense product takes less time than sums before and after smaller ones
_CHUNK = 1576  # tokens; it bounds the memory of intermediate values. Smaller chunks took longer
_ROOT = 2.0**0.5


class Prepared(NamedTuple):
    """Matrices of the split product."""

    weights: tuple[Tensor, ...]
    """For four factors, one tensor ``[4, b q, T b q]``, with columns ordered ``(half, t, i, r)``: every sum after
    the products runs over long rows. Or one dense matrix ``[d, T d]``, with columns ``(t, i, r)``.

    Otherwise skew-circulant parts from large to small, then the circulant rest: per factor of size ``h``, a matrix
    ``[b h, T b h]`` to be multiplied from the right. Its columns are ordered ``(piece, t, i, r)``, pieces of the
    smallest factor's size ``q``: so every butterfly after the products runs over long rows, and only the last sum
    restores the order of the channels."""
    blocks: int
    """Number ``b`` of slices."""


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


def prepare(vectors: Tensor) -> Prepared:
    """Matrices for ``augment`` from ``vectors [T, b, b, m]``; can be reused as long as these do not change."""
    t, b, _, m = vectors.shape
    if b * m <= _FEW_CHANNELS:
        return Prepared((_toeplitz(vectors, 1),), b)
    if m % 8 == 0:
        return Prepared((torch.stack(_factor_matrices(vectors)),), b)
    levels = 0
    while levels < _MAX_LEVELS and m % 2 ** (levels + 1) == 0:
        levels += 1
    *skew, circulant = _split(vectors, levels, 0.5)
    matrices = [*(_toeplitz(c, -1) for c in skew), _toeplitz(circulant, 1)]
    rows = [matrix.view(len(matrix), t * b, -1) for matrix in matrices]
    return Prepared(tuple(_in_pieces(row, m >> levels) for row in rows), b)


def augment(x: Tensor, vectors: Tensor | Prepared, bias: Tensor) -> Tensor:
    """``sum_t GELU(x Theta_t + bias_t)`` for ``x [..., d]`` and ``bias [T, d]``; GELU is the exact one.

    ``vectors`` is either the ``[T, b, b, m]`` parameter or the result of ``prepare``.
    """
    if x.shape[-1] != bias.shape[-1]:
        raise ValueError(f"expected tokens of {bias.shape[-1]} channels, got {x.shape[-1]}")
    weights, b = vectors if isinstance(vectors, Prepared) else prepare(vectors)
    t, d = bias.shape
    # Without gradients, in-place operations on intermediate values save more time than the products take. A trace must
    # not depend on whether gradients were on: it runs in both.
    eager = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._get_tracing_state())
    if weights[0].ndim == 3:
        return _augment_by_factors(x, weights[0], bias, b, eager)
    levels = len(weights) - 1
    if not levels:
        y = torch.addmm(bias.reshape(-1), x.reshape(-1, d), weights[0])
        first, *others = (torch.ops.aten.gelu_(y) if eager else F.gelu(y)).view(-1, t, d).unbind(1)
        return reduce(torch.add, others, first).reshape(x.shape)
    q = d // b >> levels
    parts = _split(x.reshape(-1, b, d // b), levels)
    products = [
        torch.mm(part.reshape(-1, len(weight)), weight).unflatten(-1, (-1, t * b * q))
        for part, weight in zip(parts, weights, strict=True)
    ]
    shift = _in_pieces(bias.reshape(1, t * b, -1), q).view(1, -1, t * b * q)
    y = _merge(products, in_place=eager)
    shift = shift.to(y.dtype)  # under autocast the products are narrower than the bias
    y = torch.ops.aten.gelu_(y.add_(shift)) if eager else F.gelu(y + shift)
    first, *others = y.unflatten(-1, (t, b, q)).unbind(2)  # adding slices is faster than reducing an axis this short
    if eager and others:
        out = y.new_empty(len(y), b, 2**levels, q)
        reduce(lambda sum_, path: torch.add(sum_, path, out=out.transpose(1, 2)), others, first)
        return out.view(x.shape)
    return reduce(torch.add, others, first).transpose(1, 2).reshape(x.shape)


def _augment_by_factors(x: Tensor, weight: Tensor, bias: Tensor, b: int, eager: bool) -> Tensor:
    """`augment` by one batched product of the four residues; with halves of size ``k = q/2`` in the columns."""
    t, d = bias.shape
    k = d // b // 8
    tokens = x.reshape(-1, b, d // b)
    shift = torch.stack(_residues(0.25 * bias.view(t, b, -1))).view(4, 1, t, b, 2, k).permute(0, 1, 4, 2, 3, 5)
    shift = shift.reshape(4, 1, -1)
    if eager and t > 1 and not torch.is_autocast_enabled(x.device.type):
        return _augment_in_chunks(tokens, weight, shift, t).view(x.shape)
    products = torch.baddbmm(shift, torch.stack(_residues(tokens)).flatten(2), weight).unflatten(-1, (2, -1))
    first, *others = F.gelu(_from_residues(products)).unflatten(-1, (t, b, k)).unbind(2)
    return reduce(torch.add, others, first).transpose(1, 2).reshape(x.shape)


def _augment_in_chunks(tokens: Tensor, weight: Tensor, shift: Tensor, t: int) -> Tensor:
    """The same without gradients: in chunks of tokens, whose intermediate values are written to the same memory."""
    n, b, m = tokens.shape
    k = m // 8
    rows = min(n, _CHUNK) if tokens.device.type == "cpu" else n
    width = t * b * k
    out = tokens.new_empty(n, b, 8, k)
    parts, products = tokens.new_empty(4, rows, b, 2 * k), tokens.new_empty(4, rows, 2 * width)
    sums, pieces = tokens.new_empty(4, rows, 2, width), tokens.new_empty(rows, 8, width)
    for start in range(0, n, max(rows, 1)):
        chunk = tokens[start : start + rows]
        count = len(chunk)
        if count < rows:
            parts, products, sums, pieces = parts[:, :count], products[:, :count], sums[:, :count], pieces[:count]
        _residues(chunk, parts)
        torch.baddbmm(shift, parts.flatten(2), weight, out=products)
        _from_residues(products.unflatten(-1, (2, -1)), sums, pieces)
        first, *others = torch.ops.aten.gelu_(pieces).view(count, 8, t, b, k).unbind(2)
        target = out[start : start + rows].transpose(1, 2)
        reduce(lambda sum_, path: torch.add(sum_, path, out=target), others, first)
    return out


def _residues(x: Tensor, out: Tensor | None = None) -> list[Tensor]:
    """Residues of the last axis modulo the four factors, each of a quarter of its size."""
    p0, p1, p2, p3 = x.chunk(4, -1)
    even, odd = p0 + p2, p1 + p3
    (a_lo, a_hi), (b_lo, b_hi) = (p0 - p2).chunk(2, -1), (p1 - p3).chunk(2, -1)
    lo, hi = a_lo - b_lo, a_hi + b_hi
    if out is None:
        plus = torch.cat((lo.add(b_hi, alpha=_ROOT), hi.sub(b_lo, alpha=_ROOT)), -1)
        minus = torch.cat((lo.sub(b_hi, alpha=_ROOT), hi.add(b_lo, alpha=_ROOT)), -1)
        return [even + odd, even - odd, plus, minus]
    half = lo.shape[-1]
    torch.add(even, odd, out=out[0])
    torch.sub(even, odd, out=out[1])
    torch.add(lo, b_hi, alpha=_ROOT, out=out[2][..., :half])
    torch.sub(hi, b_lo, alpha=_ROOT, out=out[2][..., half:])
    torch.sub(lo, b_hi, alpha=_ROOT, out=out[3][..., :half])
    torch.add(hi, b_lo, alpha=_ROOT, out=out[3][..., half:])
    return list(out)


def _from_residues(parts: Tensor, sums: Tensor | None = None, y: Tensor | None = None) -> Tensor:
    """From quarters of residues ``[4, n, 2, width]`` to the eight pieces in order, ``[n, 8, width]``."""
    first, second, plus, minus = parts.unbind(0)
    root = 1.0 / _ROOT
    if sums is None or y is None:
        even, odd, u, w = first + second, first - second, plus + minus, plus - minus
        a = u.sub(w.flip(1), alpha=root)
        (odd_lo, odd_hi), (w_lo, w_hi) = odd.unbind(1), w.unbind(1)
        lo = torch.stack((odd_lo.sub(w_hi, alpha=root), odd_hi.add(w_lo, alpha=root)), 1)
        hi = torch.stack((odd_lo.add(w_hi, alpha=root), odd_hi.sub(w_lo, alpha=root)), 1)
        return torch.cat((even + a, lo, even - a, hi), 1)
    even, odd, u, w = sums.unbind(0)
    torch.add(first, second, out=even)
    torch.sub(first, second, out=odd)
    torch.add(plus, minus, out=u)
    torch.sub(plus, minus, out=w)
    (odd_lo, odd_hi), (w_lo, w_hi), (u_lo, u_hi) = odd.unbind(1), w.unbind(1), u.unbind(1)
    u_lo.sub_(w_hi, alpha=root)
    u_hi.sub_(w_lo, alpha=root)
    torch.add(even, u, out=y[:, 0:2])
    torch.sub(even, u, out=y[:, 4:6])
    torch.sub(odd_lo, w_hi, alpha=root, out=y[:, 2])
    torch.add(odd_hi, w_lo, alpha=root, out=y[:, 3])
    torch.add(odd_lo, w_hi, alpha=root, out=y[:, 6])
    torch.sub(odd_hi, w_lo, alpha=root, out=y[:, 7])
    return y


def _factor_matrices(vectors: Tensor) -> list[Tensor]:
    """Products with ``vectors [T, b, b, m]`` modulo the four factors, divided by 4, as matrices ``[b q, T b q]``."""
    first, second, plus, minus = _residues(0.25 * vectors.permute(2, 0, 1, 3))
    b, t, _, q = first.shape

    def rows(c: Tensor, before: Tensor, width: int) -> Tensor:
        """``[j, t, i, s, width]``: shifted by s, with `before` entering from the left."""
        return torch.cat((before, c), -1).unfold(-1, width, 1).flip(3)

    def reduced(c: Tensor, root: float) -> Tensor:
        zeros = torch.zeros_like(c)
        f0, f1, f2, f3 = rows(torch.cat((c, zeros), -1), zeros[..., 1:], 2 * q).chunk(4, -1)
        return torch.cat((f0 - f2 + root * f3, f1 - root * f2 + f3), -1)

    matrices = [
        rows(first, first[..., 1:], q), rows(second, -second[..., 1:], q), reduced(plus, _ROOT), reduced(minus, -_ROOT)
    ]  # fmt: skip
    return [
        each.unflatten(-1, (2, -1)).permute(0, 3, 4, 1, 2, 5).reshape(b * q, t * b * q)  # to j, s, half, t, i, r
        for each in matrices
    ]


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

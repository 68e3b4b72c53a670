"""Block-circulant projections and the augmented shortcut built from them.

"Augmented Shortcuts for Vision Transformers" (NeurIPS 2021) adds ``sum_t GELU(x Theta_t + bias_t)`` to a
residual branch.  Each ``Theta_t`` is a ``b x b`` grid of circulant ``m x m`` blocks, ``m = d / b``, block
``(i, j)`` being given by one vector ``c^{ij}``::

    y^i = sum_j C^{ij} x^j = IFFT(sum_j FFT(c^{ij}) * FFT(x^j)),    C^{ij}[r, s] = c^{ij}[(r - s) mod m]

All ``Theta`` together are one tensor ``vectors [T, b, b, m]`` with ``bias [T, d]``.

A circulant product is a polynomial product modulo ``z^m - 1 = (z^{m/2} - 1)(z^{m/2} + 1)``, so one butterfly
per slice splits it into a circulant and a skew-circulant product of half the size each, and the circulant
half can be split again.  ``augment`` goes a few levels down and leaves the rest to matrix products, one per
factor, each of them covering every slice and every ``Theta``.  At the widths of vision transformers this
takes about half the time of the dense form; unlike the FFT form, it stays real, so that it runs in bfloat16
and can be exported.
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


class Prepared(NamedTuple):
    """Matrices of the split product: skew-circulant parts from large to small, then the circulant rest."""

    weights: tuple[Tensor, ...]
    """Per factor of size ``h``, a matrix ``[b h, T b h]`` to be multiplied from the right."""
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
    """Matrices for ``augment`` from ``vectors [T, b, b, m]``; worth keeping as long as these stay fixed."""
    b, m = vectors.shape[-2:]
    levels = 0
    while levels < _MAX_LEVELS and m % 2 ** (levels + 1) == 0:
        levels += 1
    *skew, circulant = _split(vectors, levels, 0.5)
    return Prepared((*(_toeplitz(c, -1) for c in skew), _toeplitz(circulant, 1)), b)


def augment(x: Tensor, vectors: Tensor | Prepared, bias: Tensor) -> Tensor:
    """``sum_t GELU(x Theta_t + bias_t)`` for ``x [..., d]`` and ``bias [T, d]``; GELU is the exact one.

    ``vectors`` is either the ``[T, b, b, m]`` parameter or what ``prepare`` made of it.
    """
    weights, b = vectors if isinstance(vectors, Prepared) else prepare(vectors)
    t, d = bias.shape
    m, levels = d // b, len(weights) - 1
    # Rows of length m, one per token and slice, keep every butterfly a two-dimensional pass.
    parts = _split(x.reshape(-1, m), levels)
    shifts = _split(bias.reshape(-1, m), levels, 0.5)
    products = [
        torch.addmm(shift.flatten(), part.reshape(-1, len(weight)), weight).view(-1, shift.shape[-1])
        for shift, part, weight in zip(shifts, parts, weights, strict=True)
    ]
    y = F.gelu(_merge(products)).view(-1, t, d)
    # Adding slices beats a reduction over an axis this short.
    return reduce(torch.add, y.unbind(1)).view(x.shape)


def _split(x: Tensor, levels: int, gain: float = 1.0) -> list[Tensor]:
    """Residues of the last axis modulo ``z^{m/2} + 1, z^{m/4} + 1, ..., z^{m/2^levels} - 1``: ``lo -+ hi``.

    Each level multiplies by ``gain``.  With 1/2, ``_merge`` is the inverse; weights and bias are split that
    way, being small, and the tokens with 1.
    """
    parts = []
    for _ in range(levels):
        lo, hi = (x if gain == 1.0 else gain * x).chunk(2, -1)
        parts.append(lo - hi)
        x = lo + hi
    return [*parts, x]


def _merge(parts: list[Tensor]) -> Tensor:
    """From halved residues back to the last axis: ``lo = u + v``, ``hi = u - v``."""
    *skew, u = parts
    for v in reversed(skew):
        u = torch.cat((u + v, u - v), -1)
    return u


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

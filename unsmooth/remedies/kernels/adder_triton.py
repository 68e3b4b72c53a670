"""Adder operators for GPUs, in Triton: fp32 distances and the gradients of the inputs.

A program computes one tile and loops over the summed axis, one column of each factor at a time, so nothing larger than
the tile is stored. Factors are transposed before, so that a column is contiguous. It was checked in Triton's
interpreter against NumPy and has not been run on a GPU.
`unsmooth.remedies.kernels.adder.triton_operators` imports this file, if Triton works on the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # rows and columns of a tile: 32 sums for each of 128 threads


@triton.jit
def _l1(q, k, out, rows, columns, depth, row_tiles, column_tiles, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """``out[b, n, m] = -sum_c |q[b, c, n] - k[b, c, m]|``"""
    tile = tl.program_id(0)
    b = (tile // (row_tiles * column_tiles)).to(tl.int64)
    n = (tile // column_tiles) % row_tiles * TILE + tl.arange(0, TILE)
    m = tile % column_tiles * TILE + tl.arange(0, TILE)
    left, right = q + b * depth * rows + n, k + b * depth * columns + m
    total = tl.zeros((TILE, TILE), tl.float32)
    for _ in range(depth):
        x = tl.load(left, mask=n < rows, other=0.0)
        y = tl.load(right, mask=m < columns, other=0.0)
        total -= tl.abs(x[:, None] - y[None, :])
        left += rows
        right += columns
    target = out + b * rows * columns + n[:, None].to(tl.int64) * columns + m[None, :]
    tl.store(target, total, mask=(n < rows)[:, None] & (m < columns)[None, :])


@triton.jit
def _pull(  # type: ignore[no-untyped-def]
    x, w, g, out, bound, rows, depth, count, row_tiles, column_tiles, TILE: tl.constexpr
):
    """``out[b, n, c] = sum_m clamp(w[b, m, c] - x[b, n, c], -bound, bound) g[b, m, n]``"""
    tile = tl.program_id(0)
    b = (tile // (row_tiles * column_tiles)).to(tl.int64)
    n = (tile // column_tiles) % row_tiles * TILE + tl.arange(0, TILE)
    c = tile % column_tiles * TILE + tl.arange(0, TILE)
    inside = (n < rows)[:, None] & (c < depth)[None, :]
    place = b * rows * depth + n[:, None].to(tl.int64) * depth + c[None, :]
    value = tl.load(x + place, mask=inside, other=0.0)
    right, factor = w + b * count * depth + c, g + b * count * rows + n
    total = tl.zeros((TILE, TILE), tl.float32)
    for _ in range(count):
        difference = tl.load(right, mask=c < depth, other=0.0)[None, :] - value
        difference = tl.where(difference > bound, bound, difference)  # a NaN stays
        difference = tl.where(difference < -bound, -bound, difference)
        total += difference * tl.load(factor, mask=n < rows, other=0.0)[:, None]
        right += depth
        factor += rows
    tl.store(out + place, total, mask=inside)


def l1(q: Tensor, k: Tensor) -> Tensor:
    """``-sum_c |q[b, n, c] - k[b, m, c]|`` of fp32 tensors, none of whose sizes is zero."""
    (b, n, d), m = q.shape, k.shape[1]
    out = q.new_empty(b, n, m)
    tiles = triton.cdiv(n, TILE), triton.cdiv(m, TILE)
    left, right = q.mT.contiguous(), k.mT.contiguous()
    with _on(q):
        _l1[(b * tiles[0] * tiles[1],)](left, right, out, n, m, d, *tiles, TILE=TILE)
    return out


def pull(x: Tensor, w: Tensor, g: Tensor, bound: float) -> Tensor:
    """``sum_m clamp(w[b, m, c] - x[b, n, c], -bound, bound) g[b, n, m]`` of fp32 tensors, as in `l1`."""
    (b, n, d), m = x.shape, w.shape[1]
    out = x.new_empty(b, n, d)
    tiles = triton.cdiv(n, TILE), triton.cdiv(d, TILE)
    with _on(x):
        _pull[(b * tiles[0] * tiles[1],)](
            x.contiguous(), w.contiguous(), g.mT.contiguous(), out, bound, n, d, m, *tiles, TILE=TILE
        )
    return out


def _on(x: Tensor) -> torch.cuda.device:
    return torch.cuda.device(x.device if x.is_cuda else -1)  # Triton launches on the current device

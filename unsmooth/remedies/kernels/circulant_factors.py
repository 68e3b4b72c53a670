"""Circulant products by four factors of equal size, and the augmented shortcut computed with them.

A circulant product of size ``m`` is a polynomial product modulo ``z^m - 1``, which has four factors, with ``k = m/8``::

    z^m - 1 = (z^2k - 1) (z^2k + 1) (z^2k - √2 z^k + 1) (z^2k + √2 z^k + 1)

Tokens are cut in eight pieces of ``k``. Their residue modulo a factor has two pieces: the halves of a polynomial modulo
``z^2k - 1``, and the real and imaginary part of a complex one modulo ``z^k - i``, ``z^k - ω`` and ``z^k + ω``,
``ω = exp(iπ/4)``. So the residues are a Fourier transform over the pieces, which sums of pieces compute. It is
orthogonal up to a factor of 4: its transpose brings products back to pieces, and the backward pass uses the same two.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK = 600  # tokens at most; more need memory that is not in the cache, and fewer make small products
_HALF = 0.5**0.5


def residues(x: Tensor, out: Tensor | None = None, scratch: Tensor | None = None) -> Tensor:
    """Residues ``[4, ..., 2, k]`` of pieces ``[..., 8, k]``."""
    if out is None or scratch is None:
        (lo, hi) = x.unflatten(-2, (2, 4)).unbind(-3)
        d = lo - hi
        (even, odd), (d0, d1, d2, d3) = (lo + hi).unflatten(-2, (2, 2)).unbind(-3), d.unbind(-2)
        base, turned = torch.stack((d0, d2), -2), torch.stack((d1 - d3, d1 + d3), -2)
        return torch.stack((even + odd, even - odd, base.add(turned, alpha=_HALF), base.sub(turned, alpha=_HALF)))
    sums, d = scratch[: x.numel()].view(2, *x.shape[:-2], 4, x.shape[-1]).unbind()
    lo, hi = x[..., :4, :], x[..., 4:, :]
    torch.add(lo, hi, out=sums)
    torch.sub(lo, hi, out=d)
    even, odd, base = sums[..., :2, :], sums[..., 2:, :], d[..., ::2, :]
    torch.add(even, odd, out=out[0])
    torch.sub(even, odd, out=out[1])
    turned = even  # its memory is free
    torch.sub(d[..., 1, :], d[..., 3, :], out=turned[..., 0, :])
    torch.add(d[..., 1, :], d[..., 3, :], out=turned[..., 1, :])
    torch.add(base, turned, alpha=_HALF, out=out[2])
    torch.sub(base, turned, alpha=_HALF, out=out[3])
    return out


def pieces(parts: Tensor, out: Tensor | None = None, scratch: Tensor | None = None) -> Tensor:
    """Pieces ``[..., 8, k]`` of residues ``[4, ..., 2, k]``: the transpose of `residues`, and 4 times its inverse."""
    first, second = parts[::2], parts[1::2]
    if out is None or scratch is None:
        (even, base), (odd, w) = first + second, first - second
        turned = torch.stack((w[..., 0, :] + w[..., 1, :], w[..., 1, :] - w[..., 0, :]))
    else:
        half, quarter = parts[:2].numel(), parts[0].numel()
        upper, lower = scratch[: 2 * half].view(2, *first.shape).unbind()
        (even, base), (odd, w) = torch.add(first, second, out=upper), torch.sub(first, second, out=lower)
        turned = scratch[2 * half : 2 * half + quarter].view(2, *parts.shape[1:-2], parts.shape[-1])
        torch.add(w[..., 0, :], w[..., 1, :], out=turned[0])
        torch.sub(w[..., 1, :], w[..., 0, :], out=turned[1])
    terms = (
        (even[..., 0, :], base[..., 0, :], 1.0),
        (even[..., 1, :], turned[0], _HALF),
        (odd[..., 0, :], base[..., 1, :], 1.0),
        (odd[..., 1, :], turned[1], _HALF),
    )
    if out is None:
        sums = [a.add(b, alpha=gain) for a, b, gain in terms]
        return torch.stack((*sums, *(a.sub(b, alpha=gain) for a, b, gain in terms)), -2)
    for j, (a, b, gain) in enumerate(terms):
        torch.add(a, b, alpha=gain, out=out[..., j, :])
        torch.sub(a, b, alpha=gain, out=out[..., j + 4, :])
    return out


def matrices(vectors: Tensor) -> Tensor:
    """Products with ``vectors [T, b, b, m]`` modulo the four factors, divided by 4: ``[4, 2 b k, 2 T b k]``.

    Rows are ordered ``(j, piece, s)`` and columns ``(piece, t, i, r)``: sums after the product run over long rows.
    """
    t, b, _, m = vectors.shape
    quarters = residues(0.25 * vectors.permute(2, 0, 1, 3).unflatten(-1, (8, m // 8))).unbind(-2)
    each = []
    for re, im, turn in zip(*quarters, (None, (0.0, 1.0), (_HALF, _HALF), (-_HALF, -_HALF)), strict=True):
        if turn is None:
            turned, sign = (im, re), 1.0  # z^2k = 1 exchanges the halves
        else:
            turned, sign = (turn[0] * re - turn[1] * im, turn[1] * re + turn[0] * im), -1.0
        upper = torch.stack((_shifted(re, turned[0]), _shifted(im, turned[1])))
        lower = torch.stack((sign * upper[1], upper[0]))  # axes: piece of the row, of the column, j, t, i, s, r
        rows = torch.stack((upper, lower)).permute(2, 0, 5, 1, 3, 4, 6)
        each.append(rows.reshape(b * m // 4, t * b * m // 4))
    return torch.stack(each)


def _shifted(c: Tensor, turned: Tensor) -> Tensor:
    """``[..., s, r]``: `c` shifted by s; what enters from the left is `turned`."""
    return torch.cat((turned[..., 1:], c), -1).unfold(-1, c.shape[-1], 1).flip(-2)


def shift(bias: Tensor, b: int) -> Tensor:
    """Terms added to the products so that the bias is added to the tokens: ``[4, 1, 2 T b k]``."""
    return residues(0.25 * _cut(bias, b).permute(2, 0, 1, 3).flatten(1)).flatten(1).unsqueeze(1)


def augment(x: Tensor, weight: Tensor, added: Tensor, t: int, b: int) -> Tensor:
    """``sum_t GELU(x Theta_t + bias_t)`` from `matrices` and `shift`, in operations that compilers know."""
    products = torch.baddbmm(added, residues(_cut(x, b)).flatten(2), weight).unflatten(-1, (2, -1))
    y = F.gelu(pieces(products)).unflatten(-1, (t, b, -1))
    return reduce(torch.add, y.unbind(2)).transpose(1, 2).reshape(x.shape)


class Augment(torch.autograd.Function):
    """`augment`, and what it is added to, in chunks of tokens: forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, added: Tensor, t: int, b: int, onto: Tensor | None) -> Tensor:
        y = x.new_empty(x.numel() // x.shape[-1], 8, added.shape[-1] // 2)
        ctx.save_for_backward(x, weight, added, y)
        ctx.sizes = t, b
        return augment_in_chunks(x, weight, added, t, b, onto, y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, added, y = ctx.saved_tensors
        needed = ctx.needs_input_grad
        unchanged = (None, None, grad if needed[5] else None)
        if not torch.is_grad_enabled():
            return (*_gradients(x, weight, ctx.sizes, y, grad, needed[0]), *unchanged)
        inputs = [each for each, wanted in zip((x, weight, added), needed, strict=False) if wanted]
        paths = augment(x, weight, added, *ctx.sizes)  # again, so that gradients of gradients are known
        grads = iter(torch.autograd.grad(paths, inputs, grad, create_graph=True))
        return (*(next(grads) if wanted else None for wanted in needed[:3]), *unchanged)


class _Memory:
    """Memory for the intermediate values of a chunk of tokens, which the next chunk uses again."""

    def __init__(self, x: Tensor, rows: int, width: int, t: int) -> None:
        self.parts, self.products = x.new_empty(4, rows, 2 * width), x.new_empty(4, rows, 2, t * width)
        self.values, self.scratch = x.new_empty(rows, 8, t * width), x.new_empty(10 * rows * t * width)

    def first(self, rows: int) -> None:
        """Keep the memory of the first rows only."""
        self.parts, self.products, self.values = self.parts[:, :rows], self.products[:, :rows], self.values[:rows]


def _chunks(x: Tensor, n: int) -> list[slice]:
    """Chunks of equal size but for the last."""
    count = -(-n // _CHUNK) if x.device.type == "cpu" else 1
    rows = max(-(-n // max(count, 1)), 1)
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


def augment_in_chunks(
    x: Tensor, weight: Tensor, added: Tensor, t: int, b: int, onto: Tensor | None, kept: Tensor | None = None
) -> Tensor:
    """`augment` without gradients, onto another tensor. The input of the GELU is written to `kept` for a backward."""
    tokens = _cut(x, b)
    n, _, _, k = tokens.shape
    out, base = x.new_empty(n, b, 8, k), None if onto is None else _cut(onto, b)
    chunks = _chunks(x, n)
    memory = _Memory(x, chunks[0].stop if chunks else 0, b * k, t)
    for chunk in chunks:
        memory.first(chunk.stop - chunk.start)
        parts, products, values, scratch = memory.parts, memory.products, memory.values, memory.scratch
        residues(tokens[chunk], parts.unflatten(-1, (b, 2, k)), scratch)
        torch.baddbmm(added, parts, weight, out=products.flatten(2))
        if kept is None:
            torch.ops.aten.gelu_(pieces(products, values, scratch))
        else:
            torch.ops.aten.gelu.out(pieces(products, kept[chunk], scratch), out=values)
        terms = [*values.unflatten(-1, (t, b, k)).unbind(2), *([] if base is None else [base[chunk].transpose(1, 2)])]
        target = out[chunk].transpose(1, 2)
        if len(terms) == 1:
            target.copy_(terms[0])
        else:
            torch.add(reduce(Tensor.add_, terms[1:-1], terms[0]), terms[-1], out=target)
    return out.view(x.shape)


def _gradients(
    x: Tensor, weight: Tensor, sizes: tuple[int, int], y: Tensor, grad: Tensor, for_x: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of the tokens, the matrices and the shift, given the input of the GELU."""
    t, b = sizes
    tokens, grads = _cut(x, b), _cut(grad, b).transpose(1, 2)
    n, _, _, k = tokens.shape
    x_grad = x.new_empty(n, b, 8, k) if for_x else None
    weight_grad, added_grad = torch.zeros_like(weight), x.new_zeros(4, 1, len(weight[0, 0]))
    chunks = _chunks(x, n)
    memory = _Memory(x, chunks[0].stop if chunks else 0, b * k, t)
    for chunk in chunks:
        memory.first(chunk.stop - chunk.start)
        parts, products, values, scratch = memory.parts, memory.products, memory.values, memory.scratch
        paths = values.unflatten(-1, (t, b, k))
        above = grads[chunk].unsqueeze(2).expand_as(paths)
        torch.ops.aten.gelu_backward.grad_input(above, y[chunk].view_as(paths), grad_input=paths)
        product_grad = residues(values, products, scratch).flatten(2)
        added_grad += product_grad.sum(1, keepdim=True)
        residues(tokens[chunk], parts.unflatten(-1, (b, 2, k)), scratch)
        weight_grad.baddbmm_(parts.transpose(1, 2), product_grad)
        if x_grad is not None:
            torch.bmm(product_grad, weight.transpose(1, 2), out=parts)
            pieces(parts.unflatten(-1, (b, 2, k)), x_grad[chunk], scratch)
    return None if x_grad is None else x_grad.view(x.shape), weight_grad, added_grad


def _cut(x: Tensor, b: int) -> Tensor:
    """Pieces ``[n, b, 8, k]`` of tokens ``[..., d]``."""
    return x.reshape(-1, b, 8, x.shape[-1] // b // 8)

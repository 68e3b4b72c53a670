"""The augmented shortcut of few channels: one product with the whole block-circulant matrix.

For so few channels an operation takes longer to start than to run, so the gradients are those of few operations, where
autograd would go back through every view that makes the matrix. A GELU of contiguous numbers takes longer to start than
one of each path, so it is called path by path.
"""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def matrix(vectors: Tensor) -> Tensor:
    """The matrix ``[d, T d]``, input by output, of ``vectors [T, b, b, m]``."""
    return vectors.take(_positions(*vectors.shape[:2], vectors.shape[-1], vectors.device))


@cache
def _positions(t: int, b: int, m: int, device: torch.device) -> Tensor:
    """Where the entries of the matrix are in the vectors: ``W[(j, s), (t, i, r)] = c_t^{ij}[(r - s) mod m]``."""
    source = torch.arange(t * b * b * m, device=device).view(t, b, b, m)
    r = torch.arange(m, device=device)
    return source[..., (r - r[:, None]) % m].permute(2, 3, 0, 1, 4).reshape(b * m, t * b * m)


@cache
def _entries(t: int, b: int, m: int, device: torch.device) -> Tensor:
    """Where the vectors are in the matrix, ``[m, T, b, b, m]``: each number has m entries."""
    order = torch.argsort(_positions(t, b, m, device).flatten(), stable=True)
    return order.view(t, b, b, m, m).permute(4, 0, 1, 2, 3).contiguous()


def augment(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``sum_t GELU(x Theta_t + bias_t)`` from the matrix, in operations that compilers know."""
    d = bias.shape[1]
    y = torch.addmm(bias.reshape(-1), x.reshape(-1, d), weight)
    return reduce(torch.add, map(F.gelu, y.split(d, 1))).reshape(x.shape)


def augment_in_place(x: Tensor, weight: Tensor, bias: Tensor, onto: Tensor | None) -> Tensor:
    """`augment`, onto another tensor, without gradients."""
    t, d = bias.shape
    paths = torch.addmm(bias.reshape(-1), x.reshape(-1, d), weight).view(*x.shape[:-1], t, d).unbind(-2)
    for path in paths:
        torch.ops.aten.gelu_(path)
    total = reduce(Tensor.add_, paths)
    return total.contiguous() if onto is None else total + onto


class Augment(torch.autograd.Function):
    """`augment` from the vectors, onto another tensor: forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, vectors: Tensor, bias: Tensor, onto: Tensor | None) -> Tensor:
        t, d = bias.shape
        weight = matrix(vectors)
        y = torch.addmm(bias.view(-1), x.reshape(-1, d), weight)
        ctx.save_for_backward(x, vectors, bias, weight, y)
        first, *others = map(F.gelu, y.view(*x.shape[:-1], t, d).unbind(-2))
        return reduce(torch.add, others if onto is None else (*others, onto), first)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, vectors, bias, weight, y = ctx.saved_tensors
        for_x, for_vectors, for_bias, for_onto = ctx.needs_input_grad
        above = grad if for_onto else None
        if torch.is_grad_enabled():  # again, so that gradients of gradients are known
            inputs = [each for each, wanted in zip((x, vectors, bias), ctx.needs_input_grad, strict=False) if wanted]
            grads = iter(torch.autograd.grad(augment(x, matrix(vectors), bias), inputs, grad, create_graph=True))
            return (*(next(grads) if wanted else None for wanted in ctx.needs_input_grad[:3]), above)
        (t, d), b = bias.shape, vectors.shape[1]
        y_grad, of_each = torch.empty_like(y), grad.reshape(-1, d)
        for path, path_grad in zip(y.split(d, 1), y_grad.split(d, 1), strict=True):
            torch.ops.aten.gelu_backward.grad_input(of_each, path, grad_input=path_grad)
        weight_grad = x.reshape(-1, d).t() @ y_grad if for_vectors else None
        return (
            (y_grad @ weight.t()).view(x.shape) if for_x else None,
            None if weight_grad is None else weight_grad.take(_entries(t, b, d // b, x.device)).sum(0),
            y_grad.sum(0).view(t, d) if for_bias else None,
            above,
        )

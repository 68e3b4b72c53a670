"""Singular values of the Jacobian of one attention block, on request (Always Skip Attention, Figures 7 and 8).

    J = ∂ vec f(X) / ∂ vec X,   f the attention branch with its norm and layer scale;   with the skip: I + J

The value is log κ(J) = ln(σ₁/σ_min); `values` are the singular values, descending; `skip` and `skip.values` the same of
I + J. Up to 4,096 entries of X the whole matrix is made and decomposed. Above that, 96 steps of Lanczos on JᵀJ with
full reorthogonalisation give both ends: the largest ones are accurate; the smallest Ritz value is an upper bound of
σ_min, so log κ is a lower bound. For one image, in double precision, for one block at a time: `blocks="3"`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.inputs import batch_inputs, first_tensor, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.vitals.base import Undefined, register

DENSE = 4096
AT_ONCE = 64  # rows of the Jacobian that are made in one backward pass
STEPS = 96
SHOWN = 256  # singular values that are kept of a dense spectrum, evenly spaced
RESOLUTION = 1e-15


@register(
    title="Jacobian spectrum of attention",
    formula="singular values of ∂f/∂X, f the attention branch; with the skip I + ∂f/∂X",
    reading="log κ; large: small changes of the tokens are lost or blown up",
    family="theory",
    of="model",
    sample=1,
    default=False,
    parts=(
        ("values", "singular values, descending"),
        ("skip", "log κ with the skip"),
        ("skip.values", "singular values with the skip"),
    ),
)
def jacobian_spectrum(model: nn.Module, anatomy: Anatomy, images: Tensor, blocks: list[int]) -> dict[str, list[Any]]:
    if len(blocks) != 1:
        raise Undefined('it is for one block at a time: ask with blocks="3"')
    branch, x = branch_function(model, anatomy, anatomy.blocks[blocks[0]], images[:1])
    out: dict[str, list[Any]] = {}
    for part, values in zip(("", "skip"), singular_spectra(branch, x), strict=True):
        kappa = (values[0] / values[-1].clamp_min(RESOLUTION * values[0])).log()
        shown = values[torch.linspace(0, len(values) - 1, min(SHOWN, len(values))).round().long()]
        for name, value in ((part, kappa.view(1)), (f"{part}.values".lstrip("."), shown.unsqueeze(0))):
            out[name] = [None] * len(anatomy.blocks)
            out[name][blocks[0]] = value
    return out


def branch_function(
    model: nn.Module, anatomy: Anatomy, block: Block, images: Tensor
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """What the attention branch of a block adds, as a function of the block's input (B, …), and that input."""
    if block.residuals.count("attn") != 1:
        raise Undefined("no single residual sum of its attention branch was found")
    seen: dict[str, Any] = {}
    module = model.get_submodule(block.name)

    def keep(_: nn.Module, args: Any, kwargs: Any) -> None:
        seen.setdefault("call", (args, kwargs))

    handle = module.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with eval_mode(model):
            run(model, batch_inputs(model, images))
    finally:
        handle.remove()
    args, kwargs = seen["call"]
    if not args or not isinstance(args[0], Tensor):
        raise Undefined("its block does not take the tokens as its first argument")
    holder = copy.deepcopy(model).double().eval().requires_grad_(False)
    inner = holder.get_submodule(block.name)

    def branch(x: Tensor) -> Tensor:
        added: list[Tensor] = []

        def on_residual(at: Block, which: str, _: Tensor, f: Tensor, __: Tensor) -> None:
            if which == "attn" and at.index == block.index:
                added.append(f)

        # Only the plain kernel can be differentiated twice.
        with sdpa_kernel(SDPBackend.MATH), probe(holder, None, None, anatomy, None, on_residual):
            inner(x, *args[1:], **kwargs)
        return added[0]

    tokens = first_tensor(args)
    assert tokens is not None
    return branch, tokens.detach().double()


def singular_spectra(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, descending, of the Jacobian J of `function` at x (1, …) and of I + J: all, or both ends."""
    if x.numel() <= DENSE:
        jacobian = dense_jacobian(function, x)
        return torch.linalg.svdvals(jacobian), torch.linalg.svdvals(jacobian.diagonal_scatter(jacobian.diagonal() + 1))

    def skip(v: Tensor) -> Tensor:
        forth = v + push(function, x, v)
        return forth + pull(function, x, forth)

    return _lanczos(lambda v: pull(function, x, push(function, x, v)), x), _lanczos(skip, x)


def dense_jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The Jacobian, row by row: images of a batch do not meet, so copies of x give one row each."""
    rows = []
    size = x.numel()
    for start in range(0, size, AT_ONCE):
        count = min(AT_ONCE, size - start)
        directions = torch.zeros(count, size, dtype=x.dtype, device=x.device)
        directions[torch.arange(count), start + torch.arange(count)] = 1
        rows.append(pull(function, x.expand(count, *x.shape[1:]), directions.view(count, *x.shape[1:])).flatten(1))
    return torch.cat(rows)


def pull(function: Callable[[Tensor], Tensor], x: Tensor, cotangent: Tensor) -> Tensor:
    """Jᵀ times a vector, for each image of a batch."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(function(x), x, cotangent)
    return gradient


def push(function: Callable[[Tensor], Tensor], x: Tensor, tangent: Tensor) -> Tensor:
    """J times a vector: the derivative of Jᵀw by w, so that every operation needs a backward pass only."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_(True)
        out = function(x)
        w = torch.zeros_like(out, requires_grad=True)
        (gradient,) = torch.autograd.grad(out, x, w, create_graph=True)
        (pushed,) = torch.autograd.grad(gradient, w, tangent)
    return pushed


def _lanczos(normal: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Square roots of the Ritz values of JᵀJ, descending."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    basis = [v / v.norm()]
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(STEPS, x.numel())):
        w = normal(basis[-1])
        diagonal.append(float((w * basis[-1]).sum()))
        known = torch.stack([b.flatten() for b in basis])
        flat = w.flatten()
        for _ in range(2):  # once is not enough in floating point
            flat = flat - known.mT @ (known @ flat)
        size = float(flat.norm())
        if not math.isfinite(size):
            raise Undefined("its Jacobian is not finite")
        if size < 1e-12 * max(map(abs, diagonal)):
            break
        beside.append(size)
        basis.append((flat / size).view_as(x))
    steps = len(diagonal)
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    side = torch.tensor(beside[: steps - 1], dtype=torch.float64)
    matrix = matrix + torch.diag(side, 1) + torch.diag(side, -1)
    return torch.linalg.eigvalsh(matrix).clamp_min(0).sqrt().flip(0)

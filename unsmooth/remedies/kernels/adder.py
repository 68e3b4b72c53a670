"""Negative L1 similarities with the gradient rules of adder networks.

An adder layer replaces the inner product by ``-||a - b||_1``. Its true gradient is a sign, which
does not depend on the distance of two values, so adder networks are trained with smoother rules:

* inputs get the clipped difference as gradient, ``clamp(gain * (b - a), -1, 1)``;
* the weights of a linear layer get the full difference, rescaled to a fixed norm per layer.

The work is elementwise over ``n * m * d`` terms. It runs in tiles through one reused buffer of bounded size,
so memory grows with the inputs and outputs only. The tiled loops are registered as opaque operators:
``torch.compile`` and ``torch.export`` see one node each instead of hundreds of unrolled tiles. With the extra ``fast``,
the operators of fp32 tensors on a CPU are compiled (`adder_compiled`): the same numbers, several times faster. On a GPU
they run in Triton (`adder_triton`), which comes with torch.

Without it, set ``OMP_WAIT_POLICY=PASSIVE`` on a CPU shared with other busy processes: each tile ends with thread
barriers, and threads that spin there waiting for a descheduled thread lose more time than the computation takes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from unsmooth.errors import first_line
from unsmooth.utils.precision import without_autocast

__all__ = ["adder_linear", "l1_scores"]

# Elements of the scratch buffer. A tile passes through several kernels: small tiles are dominated by launches
# and thread barriers, large tiles do not fit in the cache. On a CPU, 4 MB of fp32 is a good compromise.
_CPU_BUDGET = 1 << 20
_GPU_BUDGET = 1 << 24


@cache
def compiled_operators() -> ModuleType | None:
    """The operators compiled by numba, or None without the extra `fast`."""
    if find_spec("numba") is None:
        return None
    try:
        from unsmooth.remedies.kernels import adder_compiled
    except Exception as error:  # numba refuses versions of NumPy that it does not know, LLVM some processors
        warnings.warn(
            f"numba does not work here: {first_line(error)}. Adder operators run in torch, which is slower.",
            stacklevel=2,
        )
        return None
    return adder_compiled


@cache
def triton_operators(device: torch.device) -> ModuleType | None:
    """The operators for a GPU, or None if Triton is not installed or does not work on it."""
    if find_spec("triton") is None:
        return None
    try:
        from unsmooth.remedies.kernels import adder_triton

        trial = torch.zeros(1, 1, 1, device=device)
        adder_triton.pull(trial, trial, adder_triton.l1(trial, trial), 1.0)
    except Exception as error:  # it needs a C compiler, and not every GPU is supported
        warnings.warn(
            f"Triton does not work on {device}: {first_line(error)}. Adder operators run in torch, which is slower.",
            stacklevel=2,
        )
        return None
    return adder_triton


def compiled_for(*tensors: Tensor) -> ModuleType | None:
    """The compiled operators for these tensors, or None: they compute fp32 on a CPU, and nothing empty."""
    if all(x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() for x in tensors):
        return compiled_operators()
    return None


def _kernels(*tensors: Tensor) -> ModuleType | None:
    """`l1` and `pull` for these tensors on a CPU or a GPU, or None."""
    if all(x.dtype == torch.float32 and x.device.type == "cuda" and x.numel() for x in tensors):
        return triton_operators(tensors[0].device)
    return compiled_for(*tensors)


def _budget(x: Tensor) -> int:
    return _CPU_BUDGET if x.device.type == "cpu" else _GPU_BUDGET


def _fit(size: int, budget: int, others: int, least: int = 1) -> int:
    """Longest extent ``<= size`` whose tile, ``others`` elements per step, fits the budget (or ``least``)."""
    return max(1, min(size, max(least, budget // max(1, others))))


def _spans(size: int, step: int) -> Iterator[slice]:
    """Cut ``range(size)`` into the fewest spans of at most ``step``, all of nearly equal length."""
    step = math.ceil(size / max(1, math.ceil(size / step)))
    return (slice(i, min(i + step, size)) for i in range(0, size, max(1, step)))


def _batched(x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


@torch.library.custom_op("unsmooth::l1_scores", mutates_args=())
def _scores(q: Tensor, k: Tensor) -> Tensor:
    """``out[..., n, m] = -sum_c |q[..., n, c] - k[..., m, c]|``."""
    kernels = _kernels(q, k)
    if kernels is not None:
        scores: Tensor = kernels.l1(_batched(q), _batched(k))
        return scores.view(*q.shape[:-1], k.shape[-2])
    out = q.new_zeros(*q.shape[:-1], k.shape[-2])
    q, k, flat = _batched(q).contiguous(), _batched(k).contiguous(), _batched(out)
    (b, n, d), m, budget = q.shape, k.shape[1], _budget(q)
    # Tiles [b, n, m, d]: the summed axis is innermost, and a block of k is reused by many rows of q.
    tm = _fit(m, budget, n * d, least=64)
    tn = _fit(n, budget, tm * d)
    tb = _fit(b, budget, tn * tm * d)
    scratch = q.new_empty(tb * tn * tm * d)
    for bs in _spans(b, tb):
        for ns in _spans(n, tn):
            rows = q[bs, ns, None]
            for ms in _spans(m, tm):
                cols = k[bs, None, ms]
                shape = (cols.shape[0], rows.shape[1], cols.shape[2], d)
                tile = torch.sub(rows, cols, out=scratch[: math.prod(shape)].view(shape))
                torch.sum(tile.abs_(), -1, out=flat[bs, ns, ms])
    return out.neg_()


@_scores.register_fake
def _(q: Tensor, k: Tensor) -> Tensor:
    return q.new_empty(*q.shape[:-1], k.shape[-2])


@torch.library.custom_op("unsmooth::l1_pulls", mutates_args=())
def _pulls(q: Tensor, k: Tensor, g: Tensor, gain: float, need_q: bool, need_k: bool) -> tuple[Tensor, Tensor]:
    """``dq_n = sum_m C_nm g_nm``, ``dk_m = -sum_n C_nm g_nm`` with ``C_nm = clamp(gain (k_m - q_n), -1, 1)``.

    A gradient that is not needed is returned empty.
    """
    kernels = _kernels(q, k, g)
    if kernels is not None:
        rows, cols, weights = _batched(q), _batched(k), _batched(g) * gain
        dq = kernels.pull(rows, cols, weights, 1 / gain).view(q.shape) if need_q else q.new_empty(0)
        dk = kernels.pull(cols, rows, weights.mT, 1 / gain).view(k.shape) if need_k else k.new_empty(0)
        return dq, dk
    q_t, k_t = (_batched(x).transpose(1, 2).contiguous() for x in (q, k))
    (b, d, n), m, budget = q_t.shape, k_t.shape[2], _budget(q)
    dq_t = torch.zeros_like(q_t) if need_q else q.new_empty(0)
    dk_t = torch.zeros_like(k_t) if need_k else k.new_empty(0)
    # Clipping at 1/gain and scaling g keeps the difference itself exact, unlike scaling q and k.
    bound, g = 1 / gain, (_batched(g) * gain).contiguous()
    # Tiles [b, d, n, m]: channels lie outermost, so a tile of g is multiplied without inner broadcasting,
    # stays cached for all channels, and one clipped tile serves both gradients.
    tm = _fit(m, budget, n * d, least=256)
    tn = _fit(n, budget, tm * d, least=256)
    tc = _fit(d, budget, tn * tm)
    tb = _fit(b, budget, tc * tn * tm)
    scratch = q.new_empty(tb * tc * tn * tm)
    for bs in _spans(b, tb):
        for ns in _spans(n, tn):
            for ms in _spans(m, tm):
                weight = g[bs, None, ns, ms]
                for cs in _spans(d, tc):
                    rows, cols = q_t[bs, cs, ns, None], k_t[bs, cs, None, ms]
                    shape = (*rows.shape[:3], cols.shape[3])
                    tile = torch.sub(cols, rows, out=scratch[: math.prod(shape)].view(shape))
                    tile.clamp_(-bound, bound).mul_(weight)
                    if need_q:
                        dq_t[bs, cs, ns] += tile.sum(3)
                    if need_k:
                        dk_t[bs, cs, ms] -= tile.sum(2)
    return (
        dq_t.transpose(1, 2).contiguous().view(q.shape) if need_q else dq_t,
        dk_t.transpose(1, 2).contiguous().view(k.shape) if need_k else dk_t,
    )


@_pulls.register_fake
def _(q: Tensor, k: Tensor, g: Tensor, gain: float, need_q: bool, need_k: bool) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape if need_q else 0), k.new_empty(k.shape if need_k else 0)


@torch.library.custom_op("unsmooth::adder_weight_grad", mutates_args=())
def _weight_grad(x: Tensor, weight: Tensor, g: Tensor, eta: float | None) -> Tensor:
    """``dW_oj = sum_n (x_nj - W_oj) g_no``, then ``dW * eta * sqrt(numel) / ||dW||_2`` unless eta is None."""
    # An autocast region around backward would run the matmul in half precision.
    with without_autocast(x):
        grad = torch.addmm(weight * g.sum(0)[:, None], g.t(), x, beta=-1)
    if eta is not None:
        # Divide first: scale / tiny would overflow, and inf * 0 is not the zero we want for a zero gradient.
        norm = torch.linalg.vector_norm(grad).clamp_min(torch.finfo(grad.dtype).tiny)
        grad.div_(norm).mul_(eta * math.sqrt(grad.numel()))
    return grad


@_weight_grad.register_fake
def _(x: Tensor, weight: Tensor, g: Tensor, eta: float | None) -> Tensor:
    return weight.new_empty(weight.shape)


class _L1Scores(torch.autograd.Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor, gain: float) -> Tensor:
        return _scores(q, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        q, k, ctx.gain = inputs
        ctx.save_for_backward(q, k)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        need_q, need_k = ctx.needs_input_grad[:2]
        dq, dk = _pulls(*ctx.saved_tensors, g, ctx.gain, need_q, need_k)
        return dq if need_q else None, dk if need_k else None, None


class _AdderLinear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, eta: float | None, gain: float) -> Tensor:
        return _scores(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, ctx.eta, ctx.gain = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight = ctx.needs_input_grad[:2]
        dx = _pulls(x, weight, g, ctx.gain, True, False)[0] if need_x else None
        dw = _weight_grad(x, weight, g, ctx.eta) if need_weight else None
        return dx, dw, None, None


def _common(a: Tensor, b: Tensor, gain: float) -> tuple[Tensor, Tensor]:
    """Check the pair and convert it to one dtype, at least fp32, which long sums of differences need."""
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"feature sizes differ: {a.shape[-1]} and {b.shape[-1]}")
    if not gain > 0:
        raise ValueError(f"gain must be positive, got {gain}")
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    return a.to(dtype), b.to(dtype)


def l1_scores(q: Tensor, k: Tensor, gain: float = 1.0) -> Tensor:
    """Attention scores ``s_nm = -sum_c |q_nc - k_mc|`` for ``q [..., n, d]`` and ``k [..., m, d]``.

    Backward uses the clipped difference in place of the sign, so that each side moves towards the other::

        dq_n = sum_m clamp(gain * (k_m - q_n), -1, 1) g_nm
        dk_m = sum_n clamp(gain * (q_n - k_m), -1, 1) g_nm

    Scores of half-precision inputs are computed and returned in fp32; gradients have the dtype of the inputs.
    """
    if q.dim() < 2 or q.shape[:-2] != k.shape[:-2] or q.dim() != k.dim():
        raise ValueError(f"expected [..., n, d] and [..., m, d], got {tuple(q.shape)} and {tuple(k.shape)}")
    return _L1Scores.apply(*_common(q, k, gain), float(gain))


def adder_linear(x: Tensor, weight: Tensor, eta: float | None = 0.2, gain: float = 1.0) -> Tensor:
    """Adder layer ``y_no = -sum_j |x_nj - W_oj|`` for ``x [..., d_in]`` and ``weight [d_out, d_in]``.

    Backward follows AdderNet: the input gets the clipped difference, the weight the full one at fixed norm::

        dx_nj = sum_o clamp(gain * (W_oj - x_nj), -1, 1) g_no
        dW_oj = sum_n (x_nj - W_oj) g_no,   then   dW <- eta * sqrt(numel(W)) / ||dW||_2 * dW

    ``eta=None`` leaves dW as it is. The rescaling acts on each call's own gradient, so accumulating over
    several calls adds gradients of equal norm. Dtypes are treated as in :func:`l1_scores`.
    """
    if x.dim() < 1 or weight.dim() != 2:
        raise ValueError(f"expected [..., d_in], [d_out, d_in], got {tuple(x.shape)}, {tuple(weight.shape)}")
    x, weight = _common(x, weight, gain)
    rows = x.flatten(0, -2) if x.dim() > 1 else x[None]
    y = _AdderLinear.apply(rows, weight, None if eta is None else float(eta), float(gain))
    return y.reshape(*x.shape[:-1], weight.shape[0])

"""Adder attention (NeurIPS 2021): the variance of L1 scores, and the effect of the identity on the rank of a map."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.theory.matrices import Number, double, frobenius


def dot_product_variance(dim: int, query_std: Number = 1.0, key_std: Number = 1.0) -> Tensor:
    """Theorem 1: Var(q·k) = d σ_q²σ_k², d for standard normal entries.

    Assumes independent entries of mean zero. Printed for σ = 1; the standard deviations are our addition.
    """
    return dim * (double(query_std) * double(key_std)) ** 2


def adder_variance(dim: int, query_std: Number = 1.0, key_std: Number = 1.0) -> Tensor:
    """Theorem 1: Var(−‖q − k‖₁) = d (σ_q² + σ_k²)(1 − 2/π), 2d(1 − 2/π) for standard normal entries.

    Assumes independent normal entries of equal means: |q − k| is half-normal. Other distributions have another
    factor, and correlated channels add covariances, so that the variance may grow as d² instead of d.
    """
    return dim * (double(query_std) ** 2 + double(key_std) ** 2) * (1 - 2 / math.pi)


def adder_scale(dim: int) -> float:
    """√d_a with d_a = 2(1 − 2/π)d: the divisor that gives L1 scores unit variance, as √d does for dot products."""
    return math.sqrt(2 * (1 - 2 / math.pi) * dim)


def singular_share(attention: Tensor) -> Tensor:
    """f(r) = Σ_{t≤r} σ_t / Σ_t σ_t for r = 1 … n: (…, n), rising to 1. Proposition 1."""
    values = torch.linalg.svdvals(double(attention))
    return values.cumsum(-1) / values.sum(-1, keepdim=True)


def equivalent_rank(attention: Tensor, share: float = 0.9) -> Tensor:
    """The smallest r with f(r) ≥ share. Proposition 1."""
    # The tolerance covers rounding in sums of equal singular values.
    return (singular_share(attention) < share - 1e-12).sum(-1) + 1


def identity_share(values: Tensor) -> Tensor:
    """Proposition 1: f̃(r) = (Σ_{t≤r} σ_t + r)/(Σσ_t + n), never above f(r), from singular values (…, n) in order.

    This is f of A + I if σ̃ = σ + 1, which needs a symmetric positive semi-definite A. Softmax maps are not symmetric:
    a map that exchanges two tokens loses rank when I is added. `semidefinite_distance` measures the deviation.
    """
    raised = double(values) + 1
    return raised.cumsum(-1) / raised.sum(-1, keepdim=True)


def semidefinite_distance(attention: Tensor) -> Tensor:
    """‖A − B‖_F/‖A‖_F to the nearest symmetric positive semi-definite B: 0 where Proposition 1 applies (ours).

    At most 1. Squared, it is the skew-symmetric part plus the negative eigenvalues of the symmetric part.
    """
    a = double(attention)
    negative = torch.linalg.eigvalsh((a + a.mT) / 2).clamp_max(0)
    skew = frobenius((a - a.mT) / 2)
    return torch.sqrt(skew**2 + negative.square().sum(-1)) / frobenius(a)

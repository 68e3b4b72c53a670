"""Adder attention (NeurIPS 2021): the variance of L1 scores, and the effect of the identity on the rank of a map."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.theory.matrices import Number, double, frobenius


def dot_product_variance(dim: int, query_std: Number = 1.0, key_std: Number = 1.0) -> Tensor:
    """Theorem 1, Eq. 1: Var(q·k) = d σ_q²σ_k², d for standard normal entries.

    Assumes independent entries of mean zero. Printed for σ = 1; the standard deviations are our addition.
    """
    return dim * (double(query_std) * double(key_std)) ** 2


def adder_variance(dim: int, query_std: Number = 1.0, key_std: Number = 1.0) -> Tensor:
    """Theorem 1, Eq. 2, 3: Var(−‖q − k‖₁) = d (σ_q² + σ_k²)(1 − 2/π), 2d(1 − 2/π) for standard normal entries.

    Assumes independent normal entries of equal means: |q − k| is half-normal. Other distributions have another
    factor, and correlated channels add covariances, so that the variance may grow as d² instead of d.
    """
    return dim * (double(query_std) ** 2 + double(key_std) ** 2) * (1 - 2 / math.pi)


def adder_scale(dim: int) -> float:
    """√d_a with d_a = 2(1 − 2/π)d: the divisor that gives L1 scores unit variance, as √d does for dot products."""
    return math.sqrt(2 * (1 - 2 / math.pi) * dim)


def singular_share(attention: Tensor) -> Tensor:
    """f(r) = Σ_{t≤r} σ_t / Σ_t σ_t for r = 1 … n: (…, n), rising to 1. Eq. 6."""
    return _share(torch.linalg.svdvals(double(attention)))


def identity_share(values: Tensor) -> Tensor:
    """Eq. 5, 7: f̃(r) = (Σ_{t≤r} σ_t + r)/(Σσ_t + n), from singular values (…, n) in descending order.

    This is f of A + I if σ̃ = σ + 1. The paper assumes a symmetric A; the step from Eq. 4 to 5 needs a positive
    semi-definite one too. Softmax maps are neither: a map that exchanges two tokens is symmetric, and loses rank when I
    is added. `semidefinite_distance` measures the deviation.
    """
    return _share(double(values) + 1)


def share_slope(share: Tensor, step: int = 1) -> Tensor:
    """Assertion 1, Eq. 9: (f(r + h) − f(r))/h for r = 0 … n − h, never negative: f increases, for every map.

    `share` is f(1) … f(n), and f(0) = 0. The paper calls this forward difference a central one.
    """
    f = _from_zero(share)
    return (f[..., step:] - f[..., :-step]) / step


def share_curvature(share: Tensor, step: int = 1) -> Tensor:
    """Assertion 1, Eq. 10: (f(r + h) − 2f(r) + f(r − h))/h² for r = h … n − h, never positive: f is concave.

    True for every map, because singular values are in descending order. Empty if n < 2h.
    """
    f = _from_zero(share)
    return (f[..., 2 * step :] - 2 * f[..., step:-step] + f[..., : -2 * step]) / step**2


def share_ratio(share: Tensor, identity: Tensor) -> Tensor:
    """Eq. 11: R(r) = f(r)/f̃(r), at least 1 if σ̃ = σ + 1. `identity` is f̃, predicted or of A + I itself."""
    return double(share) / double(identity)


def share_margin(values: Tensor) -> Tensor:
    """Eq. 12: n·Σ_{t≤r}σ_t − r·Σσ, numerator minus denominator of R(r): never negative, and 0 at r = n."""
    values = double(values)
    n = values.shape[-1]
    return n * values.cumsum(-1) - _ranks(n) * values.sum(-1, keepdim=True)


def share_excess(share: Tensor) -> Tensor:
    """Assertion 2, Eq. 13: D(r) = f(r) − r/n, between 0 and 1 − 1/n. Eq. 14: D̃ ≤ D if σ̃ = σ + 1."""
    share = double(share)
    n = share.shape[-1]
    return share - _ranks(n) / n


def equivalent_rank(attention: Tensor, share: float = 0.9) -> Tensor:
    """Assertion 3: the smallest r with f(r) ≥ share. The paper writes f(r) = 0.9, which no whole r may solve."""
    # The tolerance covers rounding in sums of equal singular values.
    return (singular_share(attention) < share - 1e-12).sum(-1) + 1


def semidefinite_distance(attention: Tensor) -> Tensor:
    """‖A − B‖_F/‖A‖_F to the nearest symmetric positive semi-definite B: 0 where Proposition 1 applies (ours).

    At most 1. Squared, it is the skew-symmetric part plus the negative eigenvalues of the symmetric part.
    """
    a = double(attention)
    negative = torch.linalg.eigvalsh((a + a.mT) / 2).clamp_max(0)
    skew = frobenius((a - a.mT) / 2)
    return torch.sqrt(skew**2 + negative.square().sum(-1)) / frobenius(a)


def _share(values: Tensor) -> Tensor:
    return values.cumsum(-1) / values.sum(-1, keepdim=True)


def _from_zero(share: Tensor) -> Tensor:
    return torch.nn.functional.pad(double(share), (1, 0))


def _ranks(n: int) -> Tensor:
    return torch.arange(1, n + 1, dtype=torch.float64)

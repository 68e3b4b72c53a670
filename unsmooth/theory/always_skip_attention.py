"""Always Skip Attention (ICCV 2025): condition numbers of attention, of its skip, and of grayed tokens.

κ is σ_max/σ_min with σ_min the last of the min(n, d) singular values, infinite for a rank-deficient matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.theory.matrices import Number, double


def condition_number(x: Tensor) -> Tensor:
    """κ(X) = σ_max/σ_min of each (…, n, d) matrix."""
    values = torch.linalg.svdvals(double(x))
    return values[..., 0] / values[..., -1]


def linear_attention(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """X W_Q W_Kᵀ Xᵀ X W_V, attention without softmax; weights (channels, d)."""
    x = double(x)
    return (x @ double(query)) @ (x @ double(key)).mT @ (x @ double(value))


def linear_attention_bound(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Proposition 4.1: κ(XW_QW_KᵀXᵀXW_V) ≤ C κ(X)³ with C = κ(W_Q)κ(W_K)κ(W_V); the constant C is our reading.

    Assumes n ≥ d tokens of full rank and square, invertible weights, so that κ of a product is at most the product of
    the κ. With n < d (XᵀX is singular) or one head of several (a tall W_V) κ of the nonzero singular values can be
    larger, because a product through a smaller space may lose almost any direction. Softmax is not covered.
    """
    constant = condition_number(query) * condition_number(key) * condition_number(value)
    return constant * condition_number(x) ** 3


def skip_condition_number(largest: Number, smallest: Number) -> Tensor:
    """Proposition 4.2 (Eq. 16–19): (σ_max + 1)/(σ_min + 1), never above σ_max/σ_min.

    Equal to κ(M + I) for a symmetric positive semi-definite M. Eq. 17 uses that step for any M, which makes the
    proposition a heuristic: σ(M + I) = σ(M) + 1 fails for maps with negative or complex eigenvalues, and the skip can
    then raise κ. Check it on measured branches with `skip_condition_numbers`.
    """
    return (double(largest) + 1) / (double(smallest) + 1)


def skip_condition_numbers(branch: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """κ(branch) and κ(branch + X), which Proposition 4.2 compares, for tensors (…, n, d)."""
    return condition_number(branch), condition_number(double(branch) + double(x))


def grayed_condition_number(kappa: Number, epsilon: float) -> Tensor:
    """κ(U(Σ/σ_max)^ε Vᵀ) = κ(X)^ε, that is log κ(X̃) = ε log κ(X) exactly: graying by SVD.

    Graying by DCT has no such law and can raise κ.
    """
    return double(kappa) ** epsilon

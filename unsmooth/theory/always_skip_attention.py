"""Always Skip Attention (ICCV 2025): condition numbers of attention, of its skip, of convolution and of grayed tokens.

κ is σ_max/σ_min with σ_min the last of the min(n, d) singular values, infinite for a rank-deficient matrix. Equation
numbers are those of the supplement. σ_max and σ_min are the singular values of the tokens X, C = κ(W_Q)κ(W_K)κ(W_V),
and M = W_QW_KᵀXᵀXW_V, so that attention without softmax is XM.
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


def projection_bound(x: Tensor, weight: Tensor) -> Tensor:
    """Eq. 11 and 12: κ(XW) ≤ κ(X)κ(W), for a square W, or n ≥ d tokens of full rank."""
    return condition_number(x) * condition_number(weight)


def projected_attention_bound(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Eq. 10: κ(XW_QW_KᵀXᵀXW_V) ≤ κ(XW_Q)κ(XW_K)κ(XW_V), with the assumptions of `linear_attention_bound`."""
    x = double(x)
    return torch.stack([condition_number(x @ double(weight)) for weight in (query, key, value)]).prod(0)


def weight_constant(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """C = κ(W_Q)κ(W_K)κ(W_V).

    The paper says that C tends to 1 for zero-mean i.i.d. weights. It does not: the median of κ of a square Gaussian
    matrix grows in proportion to its size, so that of C with its cube. For d × m weights with m/d = ρ < 1 κ tends to
    (1 + √ρ)/(1 − √ρ) instead, and C to its cube. Orthogonal weights have C = 1.
    """
    return condition_number(query) * condition_number(key) * condition_number(value)


def linear_attention_bound(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Proposition 4.1: κ(XW_QW_KᵀXᵀXW_V) ≤ C κ(X)³, C = `weight_constant`.

    Assumes n ≥ d tokens of full rank and square, invertible weights, so that κ of a product is at most the product of
    the κ. With n < d (XᵀX is singular) or one head of several (a tall W_V) κ of the nonzero singular values can be
    larger, because a product through a smaller space may lose almost any direction. Softmax is not covered.
    """
    return weight_constant(query, key, value) * condition_number(x) ** 3


def linear_attention_map(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """M = W_QW_KᵀXᵀXW_V, channels × channels: XM is attention without softmax, X(M + I) the same with its skip."""
    x = double(x)
    return double(query) @ double(key).mT @ (x.mT @ x) @ double(value)


def skip_product_bound(x: Tensor, m: Tensor) -> Tensor:
    """Eq. 13–15: κ(XM + X) = κ(X(M + I)) ≤ κ(X)κ(M + I)."""
    m = double(m)
    return condition_number(x) * condition_number(m + torch.eye(m.shape[-1], dtype=m.dtype))


def map_bound(constant: Number, largest: Number, smallest: Number) -> Tensor:
    """Eq. 16: κ(M) ≤ C σ_max²/σ_min²."""
    return double(constant) * double(largest) ** 2 / double(smallest) ** 2


def skip_map_bound(constant: Number, largest: Number, smallest: Number) -> Tensor:
    """Eq. 17, as printed: κ(M + I) ≤ (C σ_max² + 1)/(σ_min² + 1).

    It is a heuristic: it takes the singular values of M + I for those of M plus one, which holds for symmetric positive
    semi-definite M only (`semidefinite_skip_condition_number`), and drops the norms of the weights. With X = I, W_Q =
    W_K = I and W_V = diag(1, −0.99), κ(M + I) = 200 and the right side is 1.005. See `skip_condition_numbers`.
    """
    return (double(constant) * double(largest) ** 2 + 1) / (double(smallest) ** 2 + 1)


def branch_bound(constant: Number, largest: Number, smallest: Number) -> Tensor:
    """Eq. 18: κ(X)κ(M) ≤ C σ_max³/σ_min³, which is `linear_attention_bound`."""
    return double(constant) * double(largest) ** 3 / double(smallest) ** 3


def skip_bound(constant: Number, largest: Number, smallest: Number) -> Tensor:
    """Eq. 19, as printed: κ(X)κ(M + I) ≤ (C σ_max³ + σ_max)/(σ_min³ + σ_min). It fails where Eq. 17 does."""
    largest, smallest = double(largest), double(smallest)
    return (double(constant) * largest**3 + largest) / (smallest**3 + smallest)


def skip_premise(largest: Number, smallest: Number) -> Tensor:
    """Whether σ_min < 1 < σ_max, as Proposition 4.2 assumes of i.i.d. zero-mean tokens with high probability.

    It depends on their scale and shape: n × d entries of deviation s have σ about s(√n ± √d). 49 × 16 standard normal
    entries have σ_min = 3.4, and 197 × 192 entries of deviation 0.02 have σ_max = 0.55.
    """
    return (double(smallest) < 1) & (double(largest) > 1)


def numerator_excess(constant: Number, largest: Number) -> Tensor:
    """Eq. 20: C σ_max³ + σ_max ≈ C σ_max³. Returns the relative difference, 1/(C σ_max²)."""
    return 1 / (double(constant) * double(largest) ** 2)


def denominator_excess(smallest: Number) -> Tensor:
    """Eq. 21: σ_min³ + σ_min > σ_min³. Returns the relative difference, 1/σ_min²: large only for σ_min ≪ 1."""
    return 1 / double(smallest) ** 2


def semidefinite_skip_condition_number(largest: Number, smallest: Number) -> Tensor:
    """κ(M + I) = (σ_max + 1)/(σ_min + 1) for a symmetric positive semi-definite M with these singular values (ours).

    It is never above κ(M). With negative or complex eigenvalues the skip can raise κ.
    """
    return (double(largest) + 1) / (double(smallest) + 1)


def skip_condition_numbers(branch: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """κ(branch) and κ(branch + X), which Proposition 4.2 compares, for tensors (…, n, d)."""
    return condition_number(branch), condition_number(double(branch) + double(x))


def convolution_bound(x: Tensor, weight: Tensor) -> Tensor:
    """Eq. 24: κ(W_CD X) ≤ κ(W_CD)κ(X), W_CD (n, n) the matrix of a depth-wise convolution: κ(X) to the power 1, not 3.

    One matrix for all channels means one kernel for all channels. With a kernel per channel the convolution is no such
    product: kernels that shift two orthogonal channels onto each other make κ infinite, though each has κ = 1.
    """
    return condition_number(weight) * condition_number(x)


def convolution_matrix(kernel: Tensor, height: int, width: int) -> Tensor:
    """The matrix (…, n, n) of a kernel (…, k, k), k odd, with zero padding, on n = height·width tokens row by row."""
    kernel = double(kernel)
    reach = kernel.shape[-1] // 2
    rows, columns = (torch.arange(side) for side in (height, width))
    down, right = (positions - positions.unsqueeze(-1) for positions in (rows, columns))  # from output to input
    inside = ((down.abs() <= reach)[:, None, :, None] & (right.abs() <= reach)[None, :, None, :]).double()
    down, right = (offsets.clamp(-reach, reach) + reach for offsets in (down, right))
    matrix = kernel[..., down[:, None, :, None], right[None, :, None, :]] * inside
    return matrix.flatten(-4, -3).flatten(-2, -1)


def grayed_condition_number(kappa: Number, epsilon: float) -> Tensor:
    """κ(U(Σ/σ_max)^ε Vᵀ) = κ(X)^ε, that is log κ(X̃) = ε log κ(X) exactly: graying by SVD.

    Graying by DCT has no such law and can raise κ.
    """
    return double(kappa) ** epsilon

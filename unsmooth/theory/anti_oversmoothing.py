"""Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain Analysis: From Theory to Practice (ICLR 2022).

The rate of Theorem 3 lies between 1 and √n, so it never proves that a map alone shrinks HC: only a small W_V does
(Section 2.2, `always_shrinks` and `dot_product_shrinks`). Indeed a row-stochastic map can stretch HC by up to √(n/2).
What always shrinks is the range of the tokens; the ergodicity coefficient measures it and is below 1 for finite scores.

Every bound is about the input of attention. In a pre-norm host this is LN(X), and ‖HC[LN(X)]‖ can be any multiple of
‖HC[X]‖. Biases of the value and output projections add the same token to all rows and do not change HC.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.theory.matrices import GELU_LIPSCHITZ, Number, bands, double, frobenius, spectral


def low_pass_ratio(x: Tensor) -> Tensor:
    """‖HC[X]‖_F / ‖DC[X]‖_F, infinite where the mean token is zero. A filter f is low-pass if this → 0 along fᵗ(X)."""
    low, high = bands(x)
    return frobenius(high) / frobenius(low)


def low_pass_ratios(attentions: Tensor, x: Tensor) -> Tensor:
    """The ratio of X, A₁X, A₂A₁X, …: (k+1, …) for attentions (k, …, n, n). Theorem 1 and Corollary 2.

    Theorem 1: for A = softmax(P) the ratio along A, A², … goes to 0 (give A k times). Corollary 2: the same holds for
    the powers of any product of such maps. Both need πᵀX ≠ 0 (see `limit_token`): on an eigenvector of a smaller
    eigenvalue both bands shrink equally. A product of ever new maps goes to 0 only if their scores stay bounded (see
    `product_bound`).
    """
    steps = [double(x)]
    for attention in double(attentions):
        steps.append(attention @ steps[-1])
    return torch.stack([low_pass_ratio(step) for step in steps])


def limit_token(attention: Tensor, x: Tensor) -> Tensor:
    """πᵀX (…, d), the token that all rows of AᵗX approach; πᵀA = πᵀ, Σπ = 1. Used in the proof of Theorem 1.

    Assumes a unique π, which every softmax map with finite scores has. It is the mean token only if columns
    sum to 1 as well.
    """
    a = double(attention)
    ones = torch.ones_like(a)
    system = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device) - a + ones
    pi = torch.linalg.solve(system.mT, ones[..., :1])
    return (pi.mT @ double(x)).squeeze(-2)


def largest_score(scores: Tensor, centred: bool = False) -> Tensor:
    """α = max|P| over each (…, n, n) matrix, as in Theorem 3.

    Softmax ignores a shift of a row, so half of the largest range of a row (`centred`) is valid too and never larger.
    """
    p = double(scores)
    size = (p.amax(-1) - p.amin(-1)) / 2 if centred else p.abs().amax(-1)
    return size.amax(-1)


def smoothing_rate(alpha: Number, n: int, queries: int | None = None) -> Tensor:
    """√(n e^{2α} / (e^{2α} + n − 1)), Theorem 3 without its weights: 1 at α = 0, √n at α = ∞.

    It is √(‖A‖₁‖A‖_∞) with the largest possible column sum, so it holds for every row-stochastic A whose entries stay
    below e^{2α}/(e^{2α}+n−1). A mask is an infinite score, so α = ∞. Maps with fewer keys than queries (pooled keys
    and values) need the number of queries as a factor, √(queries · …); the printed form, queries = n keys, fails there.
    """
    alpha = double(alpha)
    if n < 1 or bool((alpha < 0).any()):
        raise ValueError("expected n ≥ 1 tokens and α = max|P| ≥ 0")
    return torch.sqrt((queries or n) / (1 + (n - 1) * torch.exp(-2 * alpha)))


def attention_bound(alpha: Number, n: int, value_norm: Number) -> Tensor:
    """Theorem 3: ‖HC[AXW_V]‖_F ≤ smoothing_rate(α, n) · ‖W_V‖₂ · ‖HC[X]‖_F; this is the factor of ‖HC[X]‖_F."""
    return smoothing_rate(alpha, n) * double(value_norm)


def always_shrinks(value_norm: Number, n: int) -> Tensor:
    """Section 2.2: ‖W_V‖₂ < 1/√n, which makes ‖HC‖_F fall in every step, whatever the scores and the tokens.

    The rate of Theorem 3 is at most √n, so its bound is below 1. (√(2/n) would do (ours): no map stretches HC by more
    than √(n/2).)
    """
    return double(value_norm) < n**-0.5


def dot_product_shrinks(query: Tensor, key: Tensor, value: Tensor, gamma: Number, dim: int, n: int) -> Tensor:
    """Section 2.2: γ²‖W_QW_Kᵀ‖₂/√d + ln‖W_V‖₂ ≤ ½ ln((n−1)/n), sufficient for ‖HC‖_F to fall to zero exponentially.

    Theorem 3's bound is below √(n/(n−1))·e^α·‖W_V‖₂, and α is at most the first term, so the bound is below 1. This
    holds in all later steps too (ours): the condition implies ‖W_V‖₂ < 1, and then the tokens AXW_V stay in the ball of
    radius γ. Weights are (channels, d); γ is the largest norm of a token.
    """
    left = dot_product_score_bound(query, key, gamma, dim) + spectral(value).log()
    return left <= torch.log(double((n - 1) / n)) / 2


def multi_head_bound(alpha: Number, n: int, sigma_1: Number, sigma_2: Number, heads: int) -> Tensor:
    """Proposition 4: σ₁σ₂H·smoothing_rate(α, n), σ₁ = max_h ‖W_V^h‖₂, σ₂ = max_h ‖W_O^h‖₂, α over all heads.

    With σ₂ = ‖W_O‖₂ of the whole output projection, √H instead of H is sufficient (ours), because the squared norms of
    concatenated heads add.
    """
    return attention_bound(alpha, n, double(sigma_1) * double(sigma_2)) * heads


def skip_bound(rate: Number) -> Tensor:
    """Proposition 5: 1 + rate, for ‖HC[X + f(X)]‖_F ≤ (1 + rate)‖HC[X]‖_F where ‖HC[f(X)]‖_F ≤ rate‖HC[X]‖_F.

    An upper bound above 1 permits HC to persist but does not ensure it: a branch −X removes it. A lower bound is
    1 − rate (ours), if positive. In a pre-norm host f reads LN(X), and 1 + rate can be exceeded.
    """
    return 1 + double(rate)


def ffn_bound(rate: Number, lipschitz: Number) -> Tensor:
    """Proposition 6: σ₃·rate, an FFN of Lipschitz constant σ₃ on each token after a layer with `rate`.

    ‖HC[f(Y)]‖_F ≤ ‖f(Y) − 1f(ȳ)‖_F ≤ σ₃‖HC[Y]‖_F. σ₃ includes the slope of GELU, which exceeds 1.
    """
    return double(lipschitz) * double(rate)


def ffn_skip_bound(rate: Number, lipschitz: Number) -> Tensor:
    """Propositions 5 and 6 combined: an FFN with its own skip after a layer with `rate`: (1 + σ₃)·rate."""
    return (1 + double(lipschitz)) * double(rate)


def mlp_lipschitz(first: Tensor, second: Tensor, slope: float = GELU_LIPSCHITZ) -> Tensor:
    """σ₃ ≤ ‖W₁‖₂ · slope · ‖W₂‖₂ for an MLP of two layers; `slope` is the activation's Lipschitz constant."""
    return spectral(first) * slope * spectral(second)


def nearest_token(x: Tensor) -> Tensor:
    """Lemma 7: the mean token (…, d) is the z that minimises ‖X − 1zᵀ‖_F, and the minimum is ‖HC[X]‖_F."""
    return double(x).mean(-2)


def mean_filter_coefficient(attention: Tensor) -> Tensor:
    """Lemma 8: β* = argmin_β ‖A − F⁻¹diag(β, 0, …, 0)F‖_F = Σ a_ij / n, which is 1 for every row-stochastic A.

    F⁻¹diag(β, 0, …, 0)F = βJ, J = 11ᵀ/n. Eq. 70 prints β11ᵀ; Eq. 71 to 74 have the missing 1/n. This is why AttnScale
    splits A into J and A − J. As AJ = J, β = 1 is also best in the spectral norm, though not the only optimum; in ‖·‖_∞
    it is not optimal. Rows must sum to one: adder attention, H + I, has β* = 2.
    """
    return double(attention).sum(-1).mean(-1)


def mixing_rate(attention: Tensor) -> Tensor:
    """|λ₂(A)|: the rate at which HC[AᵗX] shrinks as t → ∞.

    It is not the λ of D.1, which holds in every step (see `ergodicity_coefficient`): A need not be normal, so one step
    may stretch HC even if λ₂ = 0.
    """
    sizes = torch.linalg.eigvals(double(attention)).abs().sort(dim=-1, descending=True).values
    return sizes[..., 1] if sizes.shape[-1] > 1 else torch.zeros_like(sizes[..., 0])


def row_contraction(attention: Tensor) -> Tensor:
    """max_i ‖a_iᵀA − πᵀ‖₁ / ‖a_i − π‖₁ over the rows a_i of A: the smallest λ of D.1 in ℓ₁; 0 where a_i = π.

    At most τ(A), and for most maps above |λ₂(A)|. D.1 does not name its norm; in ℓ₂ no λ < 1 exists for some maps.
    Assumes a unique π, as `limit_token`.
    """
    a = double(attention)
    distance = a - limit_token(a, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)).unsqueeze(-2)
    before, after = distance.abs().sum(-1), (distance @ a).abs().sum(-1)
    return torch.where(before > torch.finfo(a.dtype).eps, after / before, 0.0).amax(-1)


def ergodicity_coefficient(attention: Tensor) -> Tensor:
    """τ(A) = ½ max_{i,j} Σ_k |a_ik − a_jk| (Dobrushin): a λ of D.1, ‖a_iᵀA − πᵀ‖₁ ≤ τ‖a_i − π‖₁ for all rows.

    It is the norm of A in ℓ₁ on vectors of sum zero, such as a_i − π, so |λ₂(A)| ≤ τ(A), and τ(A) < 1 for A > 0. In
    each channel max − min over tokens shrinks by at least τ in one step, and τ(AB) ≤ τ(A)τ(B).
    """
    a = double(attention)
    return torch.cdist(a, a, p=1).amax((-2, -1)) / 2


def ergodicity_bound(alpha: Number, n: int) -> Tensor:
    """τ(A) ≤ 1 − n·min a_ij ≤ 1 − n/(1 + (n−1)e^{2α}) for A = softmax(P), |P| ≤ α: below 1 for finite α (ours)."""
    alpha = double(alpha)
    if n == 1:
        return torch.zeros_like(alpha)
    return -(n - 1) * torch.expm1(-2 * alpha) / (torch.exp(-2 * alpha) + n - 1)


def product_bound(attentions: Tensor) -> Tensor:
    """‖HC[A_k⋯A₁X]‖_F ≤ √(n/2) Π τ(A_i) ‖HC[X]‖_F for attentions (k, …, n, n): Corollary 2 with a rate (ours).

    The HC of a channel is at most √n/2 times its range, and its range at most √2 times its HC. The bound is attained
    for even n and hard maps. If Σ (1 − τ_i) is finite, as with scores that grow with depth, the product need not go to
    0.
    """
    return math.sqrt(attentions.shape[-1] / 2) * ergodicity_coefficient(attentions).prod(0)


def high_band_norm(attention: Tensor) -> Tensor:
    """‖(I−J)A(I−J)‖₂, the smallest c with ‖HC[AX]‖_F ≤ c‖HC[X]‖_F for all X (ours, exact for this row-stochastic A)."""
    _, columns = bands(attention)
    _, both = bands(columns.mT)
    return spectral(both)


def dot_product_score_bound(query: Tensor, key: Tensor, gamma: Number, dim: int) -> Tensor:
    """α ≤ γ²‖W_QW_Kᵀ‖₂/√d, weights (channels, d), γ the largest norm of a token. Assumes no biases.

    Query, key and position biases add scores that this bound does not include.
    """
    return double(gamma) ** 2 * spectral(double(query) @ double(key).mT) / math.sqrt(dim)


def logistic_score_bound(query: Tensor, key: Tensor, gamma: Number, bias: Number = 0.0) -> Tensor:
    """D.3, Eq. 68: α ≤ (‖u_K‖ + ‖u_Q‖)γ + |b| for P_ij = u_Qᵀx_i + u_Kᵀx_j + b. Printed with b, which needs b ≥ 0."""
    norms = torch.linalg.vector_norm(double(query), dim=-1) + torch.linalg.vector_norm(double(key), dim=-1)
    return norms * double(gamma) + double(bias).abs()


def l2_score_bound(query: Tensor, key: Tensor, gamma: Number, temperature: Number) -> Tensor:
    """D.3, Eq. 69: α ≤ (‖W_K‖₂ + ‖W_Q‖₂)²γ²/τ for P_ij = −‖W_Qᵀx_i − W_Kᵀx_j‖²/τ, weights (channels, d)."""
    return ((spectral(query) + spectral(key)) * double(gamma)) ** 2 / double(temperature)


def rank_collapse_step(d: Tensor, weights: Tensor, mixing: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """D.2: both sides of ‖D1 pᵀ R W_V‖₁ ≤ ‖D1‖_∞ ‖R‖₁ ‖W_V‖₁, p = softmax(r), a step of Dong et al.'s Lemma A.1.

    D (n, n), p (n,), R (n, d), W_V (d, d); ‖·‖₁ is the largest column sum of absolute values. The step (their Eq. 12)
    is false: D = diag(2, 3), p = (0.8, 0.2), R = W_V = I give 4 and 3. With ‖D1‖₁ in place of ‖D1‖_∞ it holds (ours).
    D.2 has two more remarks. Lemma A.3 needs max(E_ij − E_ij') ≤ 1 for the scores E, an assumption that the authors of
    Dong et al. confirmed. Eq. 8 and 9 of Lemma A.1 need R ≥ 0 and W_V ≥ 0 in each entry, or their absolute values.
    """
    d, weights, mixing, value = double(d), double(weights), double(mixing), double(value)
    column = d.sum(-1, keepdim=True)
    left = _largest_column(column @ weights.unsqueeze(-2) @ mixing @ value)
    return left, column.abs().amax((-2, -1)) * _largest_column(mixing) * _largest_column(value)


def _largest_column(matrix: Tensor) -> Tensor:
    return matrix.abs().sum(-2).amax(-1)

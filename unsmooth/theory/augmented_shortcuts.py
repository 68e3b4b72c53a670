"""Augmented Shortcuts for Vision Transformers (NeurIPS 2021): decay of token diversity with and without shortcuts.

    AugMSA(Z) = MSA(Z) + Z + Σ_i σ(ZΘ_i),   AugMLP likewise,   σ λ-Lipschitz,   r(Z) = min_z ‖Z − 1zᵀ‖

Printed: Eq. S.1–S.4 (one layer), Theorem 2 = Eq. S.5 (a stack of AugMSA), Eq. S.6 and S.7 (one block), Theorem S.1 =
Eq. S.8 (a stack of blocks). Theorem 1 is of Dong et al. (ICML 2021). The linear form is not in the supplement; PanGu-π
(arXiv 2312.17276, Theorem 4), by some of the same authors, prints it.

All of these are upper bounds. A larger bound permits diversity but does not prove it: with Θ = −I and tokens far below
zero, Z + GELU(−Z) = GELU(Z) is close to zero. The input of the branches must be Z itself, not LN(Z).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from unsmooth.theory.matrices import GELU_LIPSCHITZ, Number, bands, double, frobenius, spectral

Constants = Literal["printed", "largest"]


def composite_norm(x: Tensor) -> Tensor:
    """√(‖X‖₁‖X‖_∞), largest column sum times largest row sum of |X|. At least ‖X‖₂.

    It is submultiplicative but not a norm: the triangle inequality fails, so sums with shortcuts need another norm.
    """
    x = double(x).abs()
    return torch.sqrt(x.sum(-2).amax(-1) * x.sum(-1).amax(-1))


def diversity(z: Tensor, norm: Literal["frobenius", "composite"] = "frobenius") -> Tensor:
    """r(Z) = min_z ‖Z − 1zᵀ‖. Frobenius: ‖HC[Z]‖_F exactly. Composite: with the mean token, hence an upper bound."""
    _, high = bands(z)
    return frobenius(high) if norm == "frobenius" else composite_norm(high)


def attention_gamma(query_key: Tensor, value_output: Tensor) -> Tensor:
    """γ = max_h ‖W_Q^h W_K^hᵀ‖₂ ‖W_V^h W_O^h‖₂ of weights (…, heads, d, d).

    The paper calls γ' = γ/2 a constant of the weights. In the Frobenius norm this γ is one (ours), for scores of any
    size: r(MSA(Z)) ≤ (Hγ'/√d) r(Z)³, d the width of a head. See `stacked_attention_bound`.
    """
    return (spectral(query_key) * spectral(value_output)).amax(-1)


def log_stacked_attention_bound(
    diversity: Number, gamma: Number, heads: int, dim: int, layers: int, factor: float = 4.0
) -> Tensor:
    """log of `stacked_attention_bound`: the bound itself overflows after a few layers."""
    power = 3**layers
    rate = double(factor * heads / math.sqrt(dim)) * double(gamma)
    return torch.xlogy(double((power - 1) / 2), rate) + power * torch.log(double(diversity))


def stacked_attention_bound(
    diversity: Number, gamma: Number, heads: int, dim: int, layers: int, factor: float = 4.0
) -> Tensor:
    """Theorem 1: r(Z_l) ≤ (4Hγ/√d)^{(3^l − 1)/2} r(Z_0)^{3^l} for attention alone, l layers, d the width of a head.

    Collapse follows only while 4Hγ/√d · r(Z_0)² < 1; above, the bound grows. γ is a norm of the weights.
    Dong et al. work with the composite norm and small scores. In the Frobenius norm with `attention_gamma` no such
    assumption is needed and factor = ½ is sufficient (ours): softmax is ½-Lipschitz, so with R = HC[Z]
    ‖A − 1pᵀ‖_F ≤ ½‖R W_Q W_Kᵀ Rᵀ‖_F/√d, p the softmax of the common part of all rows of the scores.
    Query and key biases do not matter. Position biases and masks invalidate it: with them the rows of A differ even if
    all tokens are equal.
    """
    return torch.exp(log_stacked_attention_bound(diversity, gamma, heads, dim, layers, factor))


def shortcut_gain(norms: Tensor, lipschitz: float = GELU_LIPSCHITZ) -> Tensor:
    """α = 1 + λ Σ_i ‖Θ_i‖₂ for norms (…, T): r(Z + Σσ(ZΘ_i)) ≤ α r(Z), by Eq. S.2. β of the MLP is the same.

    The default λ is that of GELU, 1.1289… .
    """
    return 1 + lipschitz * double(norms).sum(-1)


def augmented_head_bound(diversity: Number, half_gamma: Number, dim: int, alpha: Number) -> Tensor:
    """Eq. S.3: (γ'/√d) r³ + α r bounds r after AugMSA with one head.

    r is the diversity of the input in both terms; the printed indices, l − 1 and l, differ.
    """
    r = double(diversity)
    return double(half_gamma) / math.sqrt(dim) * r**3 + double(alpha) * r


def augmented_msa_bound(diversity: Number, half_gamma: Number, heads: int, dim: int, alpha: Number) -> Tensor:
    """Eq. S.4, left: (Hγ'/√d) r³ + Hα r bounds r after AugMSA with H heads. The factor H of α r is not needed."""
    return heads * augmented_head_bound(diversity, half_gamma, dim, alpha)


def augmented_msa_step(diversity: Number, gamma: Number, heads: int, dim: int, alpha: Number) -> Tensor:
    """Eq. S.4, right: max((Hγ/√d) r³, 2Hα r) with γ = 2γ', never below `augmented_msa_bound`."""
    r = double(diversity)
    return torch.maximum(heads * double(gamma) / math.sqrt(dim) * r**3, 2 * heads * double(alpha) * r)


def augmented_mlp_rate(delta: Number, beta: Number) -> Tensor:
    """Eq. S.6: r(AugMLP(Z')) ≤ (δ + β) r(Z'), δ the Lipschitz constant of the MLP without skip, β = `shortcut_gain`.

    The paper calls δ + β usually larger than 1. It is never smaller, because β ≥ 1.
    """
    return double(delta) + double(beta)


def augmented_block_step(
    diversity: Number, gamma: Number, heads: int, dim: int, alpha: Number, delta: Number, beta: Number
) -> Tensor:
    """Eq. S.7: (δ + β) max((Hγ/√d) r³, 2Hα r) bounds r after a block of AugMSA and AugMLP."""
    return augmented_mlp_rate(delta, beta) * augmented_msa_step(diversity, gamma, heads, dim, alpha)


def log_recursion(
    diversity: Number, gammas: Tensor, heads: int, dim: int, alphas: Tensor, mlp_rates: Number = 1.0
) -> Tensor:
    """log r after each of l layers, by Eq. S.4 or, with MLP rates δ + β, by Eq. S.7, layer by layer.

    Constants are (…, l), one per layer. This is the bound that Theorems 2 and S.1 unroll, and it holds for any of them.
    """
    logs, mlp = [torch.log(double(diversity))], torch.log(double(mlp_rates)).expand_as(double(alphas))
    cubic, linear = torch.log(_cubic(gammas, heads, dim)).expand_as(mlp), torch.log(2 * heads * double(alphas))
    for layer in range(mlp.shape[-1]):
        r = logs[-1]
        logs.append(mlp[..., layer] + torch.maximum(cubic[..., layer] + 3 * r, linear[..., layer] + r))
    return torch.stack([torch.broadcast_to(r, logs[-1].shape) for r in logs[1:]], -1)


def log_theorem_2(
    diversity: Number, gamma: Number, heads: int, dim: int, alphas: Tensor, constants: Constants = "printed"
) -> Tensor:
    """log of Theorem 2 (Eq. S.5), the bound of r(Z_l) after a stack of AugMSA with gains α_0, …, α_{l−1} (…, l):

        r(Z_l) ≤ max_{0≤m≤l} (Hγ/√d)^{(3^m − 1)/2} (2Hα_m)^{3^m(l − m)} r(Z_0)^{3^m}

    m counts the layers in which the cubic term of Eq. S.4 is the larger one, so α_m has the index of a count and not of
    a layer. With one α for all layers the bound is equal to `log_recursion`. If α differs by layer it can be below the
    recursion (a test has an example). `constants="largest"` puts the largest α of the layers in place of α_m, which
    repairs it. γ is the largest of the layers. α_l, of no layer, has exponent 0.
    """
    return _log_unrolled(diversity, _cubic(gamma, heads, dim), 2 * heads * double(alphas), 1.0, constants)


def log_theorem_s1(
    diversity: Number,
    gamma: Number,
    heads: int,
    dim: int,
    alphas: Tensor,
    delta: Number,
    betas: Tensor,
    constants: Constants = "printed",
) -> Tensor:
    """log of Theorem S.1 (Eq. S.8), the bound of r(Z_l) after l blocks of AugMSA and AugMLP, constants (…, l):

        max_{0≤m≤l} (Hγ(δ + β_m)/√d)^{(3^m − 1)/2} (2Hα_m(δ + β_m))^{3^m(l − m)} r(Z_0)^{3^m}

    As in `log_theorem_2`, m is a count, and `constants="largest"` repairs the bound for blocks that differ. γ and δ are
    the largest of the blocks. β_l, of no block, is that of the last one.
    """
    rates = augmented_mlp_rate(delta, betas)
    return _log_unrolled(diversity, _cubic(gamma, heads, dim), 2 * heads * double(alphas), rates, constants)


def _cubic(gamma: Number, heads: int, dim: int) -> Tensor:
    return heads * double(gamma) / math.sqrt(dim)


def _log_unrolled(diversity: Number, cubic: Tensor, linear: Tensor, mlp: Number, constants: Constants) -> Tensor:
    """log max_m (cubic·mlp_m)^{(3^m − 1)/2} (linear_m·mlp_m)^{3^m(l − m)} r^{3^m}."""
    mlp = double(mlp).expand_as(linear)
    if constants == "largest":
        linear, mlp = (values.amax(-1, keepdim=True).expand_as(values) for values in (linear, mlp))
    layers, start = linear.shape[-1], torch.log(double(diversity))
    terms = []
    for m in range(layers + 1):
        power, at = 3.0**m, min(m, layers - 1)
        cubes = torch.xlogy(double((power - 1) / 2), cubic * mlp[..., at])
        lines = power * (layers - m) * torch.log(linear[..., at] * mlp[..., at])
        terms.append(cubes + lines + power * start)
    return torch.stack(terms).amax(0)


def linear_msa_rate(attention_rate: Number, alpha: Number) -> Tensor:
    """Linear form (PanGu-π): r(AugMSA(Z)) ≤ (ρ + α) r(Z) if r(MSA(Z)) ≤ ρ r(Z).

    PanGu-π has ρ = √λ·H·s·υ₁: λ the largest eigenvalue of Aᵀ(I−J)A, s and υ₁ the norms of W_V and W_O.
    """
    return double(attention_rate) + double(alpha)


def linear_stack_bound(diversity: Number, rates: Tensor) -> Tensor:
    """Linear form of a stack: r(Z_l) ≤ r(Z_0) Π rates, for rates (…, l) of its AugMSA and AugMLP in any order."""
    return double(diversity) * double(rates).prod(-1)


def block_circulant_norm(vectors: Tensor) -> Tensor:
    """‖Θ‖₂ of block-circulant Θ from vectors (…, b, b, m): the largest ‖·‖₂ of its b×b blocks of FFT values, exactly.

    The Fourier transform of each slice is unitary and turns every circulant block into a diagonal one.
    """
    spectrum = torch.fft.rfft(double(vectors))
    blocks = spectrum.movedim(-1, -3)
    norms: Tensor = torch.linalg.matrix_norm(blocks, ord=2)
    return norms.amax(-1)

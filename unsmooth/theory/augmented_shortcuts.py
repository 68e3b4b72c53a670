"""Augmented Shortcuts for Vision Transformers (NeurIPS 2021): decay of token diversity with and without shortcuts.

From the paper: r(Z), AugMSA and Theorem 1 (of Dong et al., ICML 2021). The text of Theorem 2 (Eq. S.5) and Theorem S.1
(Eq. S.8) was not available. The functions with these numbers are our own derivation from

    AugMSA(Z) = MSA(Z) + Z + Σ_i σ(ZΘ_i),   AugMLP likewise,   σ L-Lipschitz,

in the Frobenius norm. PanGu-π (arXiv 2312.17276, Theorem 4), by some of the same authors, prints the linear form.

All of these are upper bounds. A larger bound permits diversity but does not prove it: with Θ = −I and tokens far below
zero, Z + GELU(−Z) = GELU(Z) is close to zero. The input of the branches must be Z itself, not LN(Z).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from unsmooth.theory.matrices import GELU_LIPSCHITZ, Number, bands, double, frobenius, spectral


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
    """γ = max_h ‖W_Q^h W_K^hᵀ‖₂ ‖W_V^h W_O^h‖₂ of weights (…, heads, d, d): our choice of γ for the Frobenius norm."""
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
    """α = 1 + L Σ_i ‖Θ_i‖₂ for norms (…, T): r(Z + Σσ(ZΘ_i)) ≤ α r(Z). The default L is that of GELU, 1.1289… ."""
    return 1 + lipschitz * double(norms).sum(-1)


def augmented_msa_bound(
    diversity: Number, gamma: Number, heads: int, dim: int, norms: Tensor, lipschitz: float = GELU_LIPSCHITZ
) -> Tensor:
    """Theorem 2 (Eq. S.5), our derivation, one layer: r(AugMSA(Z)) ≤ (4Hγ/√d) r(Z)³ + α r(Z), α = `shortcut_gain`.

    Apply it layer by layer for a stack. The cubic term is Theorem 1, with the same assumptions.
    """
    attention = stacked_attention_bound(diversity, gamma, heads, dim, layers=1)
    return attention + shortcut_gain(norms, lipschitz) * double(diversity)


def augmented_msa_rate(attention_rate: Number, norms: Tensor, lipschitz: float = GELU_LIPSCHITZ) -> Tensor:
    """Theorem 2 (Eq. S.5), our derivation, linear form: r(AugMSA(Z)) ≤ (ρ + α) r(Z) if r(MSA(Z)) ≤ ρ r(Z).

    PanGu-π prints it with ρ = √λ·H·s·υ₁: λ the largest eigenvalue of Aᵀ(I−J)A, s and υ₁ the norms of W_V and W_O.
    """
    return double(attention_rate) + shortcut_gain(norms, lipschitz)


def augmented_mlp_rate(mlp_lipschitz: Number, norms: Tensor, lipschitz: float = GELU_LIPSCHITZ) -> Tensor:
    """Theorem S.1 (Eq. S.8), our derivation: r(AugMLP(Z)) ≤ (σ₃ + α) r(Z), σ₃ the MLP's own Lipschitz constant."""
    return double(mlp_lipschitz) + shortcut_gain(norms, lipschitz)


def augmented_stack_bound(diversity: Number, rates: Tensor) -> Tensor:
    """r(Z_l) ≤ r(Z_0) Π rates, for rates (…, l) of the layers in any order: Theorems 2 and S.1 for a stack."""
    return double(diversity) * double(rates).prod(-1)


def block_circulant_norm(vectors: Tensor) -> Tensor:
    """‖Θ‖₂ of block-circulant Θ from vectors (…, b, b, m): the largest ‖·‖₂ of its b×b blocks of FFT values, exactly.

    The Fourier transform of each slice is unitary and turns every circulant block into a diagonal one.
    """
    spectrum = torch.fft.rfft(double(vectors))
    blocks = spectrum.movedim(-1, -3)
    norms: Tensor = torch.linalg.matrix_norm(blocks, ord=2)
    return norms.amax(-1)

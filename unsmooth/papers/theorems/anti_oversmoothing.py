"""Anti-oversmoothing: softmax maps are low-pass filters, when HC falls, and how fast rows of a map become equal."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from unsmooth.papers.theorems.draws import TOKENS, Theorem, normal, row
from unsmooth.results.reproduction import ArmResult
from unsmooth.theory import anti_oversmoothing as theory
from unsmooth.theory.matrices import bands, frobenius, spectral

Map = Callable[[Tensor, int], Tensor]  # tokens and step to attention maps


def low_pass(small: bool) -> list[ArmResult]:
    """‖HC‖/‖DC‖ after powers of one softmax map (Theorem 1), and after products of different ones (Corollary 2)."""
    depth, images = 12, 16 if small else 256
    x = normal(images, TOKENS, 32) + 1
    rows = []
    for beta in (0.5, 2.0):
        maps = (beta * normal(depth, images, TOKENS, TOKENS)).softmax(-1)
        for kind, stack in (("powers of one map", maps[:1].expand_as(maps)), ("products of different maps", maps)):
            ratios = theory.low_pass_ratios(stack, x).mean(1).log10().tolist()
            name = f"{kind}, logits of deviation {beta:g}"
            rows.append(row(name, "map", range(depth + 1), {"log₁₀ ‖HC‖/‖DC‖": ratios}))
    return rows


def smoothing_conditions(small: bool) -> list[ArmResult]:
    """Growth of ‖HC‖ by layer with the two conditions of Section 2.2, and without them. Largest values over draws."""
    draws, dim, n = (16 if small else 256), 16, TOKENS
    query, key, value = (_of_norm(normal(draws, dim, dim, seed=seed), 1.0) for seed in (1, 2, 3))
    x = normal(draws, n, dim)
    x = x / x.norm(dim=-1, keepdim=True).amax(-2, keepdim=True)  # in the unit ball: γ = 1
    product = math.sqrt(dim) / spectral(query @ key.mT)  # makes γ²‖W_QW_Kᵀ‖₂/√d = 1
    edge = math.sqrt((n - 1) / n) / math.e

    def drawn(tokens: Tensor, step: int) -> Tensor:
        return 8 * normal(draws, n, n, seed=10 + step)

    def dot_product(tokens: Tensor, step: int) -> Tensor:
        return product[:, None, None] * (tokens @ query) @ (tokens @ key).mT / math.sqrt(dim)

    def two_keys(tokens: Tensor, step: int) -> Tensor:
        """Half of the tokens look at the first token, half at the last one."""
        first = torch.arange(n) < n // 2
        return 40 * torch.stack([first, ~first]).mT.double() @ torch.eye(n, dtype=torch.float64)[[0, -1]]

    ends = torch.zeros_like(x)
    ends[:, 0], ends[:, -1] = x[:, 0], -x[:, 0]
    return [
        _growth("‖W_V‖₂ = 0.99/√n, new logits of deviation 8", x, drawn, 0.99 / math.sqrt(n) * value, 8),
        _growth("dot products at the sufficient condition", x, dot_product, edge * value, 2),  # then HC is rounding
        _growth("W_V = I, two keys for all queries", ends, two_keys, torch.eye(dim, dtype=torch.float64), 8),
    ]


def _growth(name: str, x: Tensor, scores: Map, value: Tensor, layers: int) -> ArmResult:
    """ln of the growth of ‖HC‖ in each layer and of its bound, Theorem 3."""
    growth, bounds = [], []
    for step in range(layers):
        p = scores(x, step)
        y = p.softmax(-1) @ x @ value
        bounds.append(theory.attention_bound(theory.largest_score(p), x.shape[-2], spectral(value)).log().max())
        growth.append((frobenius(bands(y)[1]) / frobenius(bands(x)[1])).log().max())
        x = y
    curves = {"ln of the growth of ‖HC‖, largest": growth, "ln of its bound, largest": bounds}
    values = {label: [float(v) for v in drawn] for label, drawn in curves.items()}
    return row(name, "layer", range(1, layers + 1), values)


def _of_norm(weights: Tensor, size: float) -> Tensor:
    return weights * size / spectral(weights)[..., None, None]


def mixing(small: bool) -> list[ArmResult]:
    """D.1's λ, ‖a_iᵀA − πᵀ‖₁ ≤ λ‖a_i − π‖₁: the smallest one, the ergodicity coefficient and |λ₂|. Means over maps."""
    maps, sharpness = (64 if small else 1024), (0.25, 0.5, 1.0, 2.0, 4.0)
    logits = normal(maps, TOKENS, TOKENS)
    curves: dict[str, list[float]] = {"smallest λ": [], "τ(A)": [], "|λ₂(A)|": [], "largest λ/τ(A)": []}
    for beta in sharpness:
        a = (beta * logits).softmax(-1)
        smallest, tau, second = theory.row_contraction(a), theory.ergodicity_coefficient(a), theory.mixing_rate(a)
        drawn = (smallest.mean(), tau.mean(), second.mean(), (smallest / tau).max())
        for label, number in zip(curves, drawn, strict=True):
            curves[label].append(float(number))
    return [row("softmax of normal logits", "sharpness", sharpness, curves)]


THEOREMS: dict[str, Theorem] = {"low_pass": low_pass, "smoothing_conditions": smoothing_conditions, "mixing": mixing}

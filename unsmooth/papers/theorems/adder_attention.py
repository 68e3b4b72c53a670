"""Adder attention: the variance of the scores, and what adding the identity does to the singular values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unsmooth.papers.theorems.draws import TOKENS, Theorem, normal, row
from unsmooth.results.reproduction import ArmResult
from unsmooth.theory import adder_attention as adder


def score_variance(small: bool) -> list[ArmResult]:
    """Var(q·k) = d and Var(−‖q − k‖₁) = 2d(1 − 2/π) for standard normal q and k."""
    draws, dims = (20_000 if small else 500_000), (16, 32, 64, 128)
    rows = []
    scores: dict[str, tuple[Callable[[int], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
        "q·k": (adder.dot_product_variance, lambda q, k: (q * k).sum(1)),
        "−‖q − k‖₁": (adder.adder_variance, lambda q, k: -(q - k).abs().sum(1)),
    }
    for name, (predict, score) in scores.items():
        measured = [float(score(normal(draws, d), normal(draws, d, seed=1)).var()) for d in dims]
        predicted = [float(predict(d)) for d in dims]
        rows.append(row(name, "channels", dims, {"predicted": predicted, "measured": measured}))
    return rows


def identity_rank(small: bool) -> list[ArmResult]:
    """Proposition 1 on random maps: what f does, and how f, the singular values and the rank change when I is added."""
    maps, sharpness = (64 if small else 1024), (0.25, 0.5, 1.0, 2.0, 4.0)
    logits, tokens = normal(maps, TOKENS, TOKENS), normal(maps, TOKENS, 16)
    distance = torch.cdist(tokens, tokens, p=1)
    makers: dict[str, Callable[[float], Tensor]] = {
        "symmetric and semi-definite (L1 kernel)": lambda beta: _symmetric(-beta * distance / 4),
        "symmetric (normal logits)": lambda beta: _symmetric(beta * (logits + logits.mT) / 2**0.5),
        "softmax of normal logits": lambda beta: (beta * logits).softmax(-1),
    }
    curves = {
        name: {label: [measure(make(beta)) for beta in sharpness] for label, measure in MEASURES.items()}
        for name, make in makers.items()
    }
    return [row(name, "sharpness", sharpness, by_label) for name, by_label in curves.items()]


def _with_identity(a: Tensor) -> Tensor:
    return a + torch.eye(a.shape[-1], dtype=a.dtype)


def _largest(values: Tensor) -> float:
    return round(float(values.max()), 9) + 0.0  # without rounding errors of equal sums, and without −0


def _singular_gap(a: Tensor) -> Tensor:
    before, after = (torch.linalg.svdvals(b) for b in (a, _with_identity(a)))
    return (after - before - 1).abs()


def _shares(a: Tensor) -> tuple[Tensor, Tensor]:
    return adder.singular_share(a), adder.singular_share(_with_identity(a))


def _excess_gap(a: Tensor) -> Tensor:
    before, after = (adder.share_excess(share) for share in _shares(a))
    return after - before


def _mean_rank(a: Tensor) -> float:
    return float(adder.equivalent_rank(a).double().mean())


# Each curve is the largest value over maps and r, or a mean over maps.
MEASURES: dict[str, Callable[[Tensor], float]] = {
    "−∇f": lambda a: _largest(-adder.share_slope(adder.singular_share(a))),
    "∇²f": lambda a: _largest(adder.share_curvature(adder.singular_share(a))),
    "|σ̃ − σ − 1|": lambda a: _largest(_singular_gap(a)),
    "1/R": lambda a: _largest(1 / adder.share_ratio(*_shares(a))),
    "D̃ − D": lambda a: _largest(_excess_gap(a)),
    "rank of A": _mean_rank,
    "rank of A + I": lambda a: _mean_rank(_with_identity(a)),
    "distance to symmetric PSD": lambda a: float(adder.semidefinite_distance(a).mean()),
}


def _symmetric(logits: Tensor) -> Tensor:
    """exp(logits), scaled on both sides until rows sum to about one: symmetric, and PSD for L1 distances."""
    kernel = logits.exp()
    for _ in range(20):
        root = kernel.sum(-1).sqrt()
        kernel = kernel / (root.unsqueeze(-1) * root.unsqueeze(-2))
    return kernel


THEOREMS: dict[str, Theorem] = {"score_variance": score_variance, "identity_rank": identity_rank}

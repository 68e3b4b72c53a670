"""Adder attention: the variance of the scores, and the rank that the identity adds."""

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
    """Equivalent rank of A and of A + I for two kinds of maps, and their distance to symmetric PSD matrices."""
    maps, sharpness = (64 if small else 1024), (0.25, 0.5, 1.0, 2.0, 4.0)
    logits, tokens = normal(maps, TOKENS, TOKENS), normal(maps, TOKENS, 16)
    distance = torch.cdist(tokens, tokens, p=1)
    makers: dict[str, Callable[[float], Tensor]] = {
        "softmax of normal logits": lambda beta: (beta * logits).softmax(-1),
        "L1 distances of normal tokens, scaled to sum 1": lambda beta: _symmetric(-beta * distance / 4),
    }
    return [
        row(name, "sharpness", sharpness, _ranks([make(beta) for beta in sharpness])) for name, make in makers.items()
    ]


def _ranks(by_sharpness: list[Tensor]) -> dict[str, list[float]]:
    identity = torch.eye(TOKENS, dtype=torch.float64)
    before, after = (
        [adder.equivalent_rank(a + extra).double() for a in by_sharpness] for extra in (torch.zeros(()), identity)
    )
    return {
        "rank of A": [float(rank.mean()) for rank in before],
        "rank of A + I": [float(rank.mean()) for rank in after],
        "share of maps whose rank rises": [float((b > a).double().mean()) for a, b in zip(before, after, strict=True)],
        "distance to symmetric PSD": [float(adder.semidefinite_distance(a).mean()) for a in by_sharpness],
    }


def _symmetric(logits: Tensor) -> Tensor:
    """exp(logits), scaled on both sides until rows sum to about one: symmetric, and PSD for L1 distances."""
    kernel = logits.exp()
    for _ in range(20):
        root = kernel.sum(-1).sqrt()
        kernel = kernel / (root.unsqueeze(-1) * root.unsqueeze(-2))
    return kernel


THEOREMS: dict[str, Theorem] = {"score_variance": score_variance, "identity_rank": identity_rank}

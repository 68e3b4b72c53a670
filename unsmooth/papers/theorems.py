"""Theorems as experiments: predictions next to values measured on random inputs, one function each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unsmooth.errors import unknown
from unsmooth.papers.catalogue import Experiment
from unsmooth.papers.request import RunRequest
from unsmooth.results.reproduction import ArmResult, GroupResult, MeasuredCurve
from unsmooth.theory import adder_attention as adder
from unsmooth.theory.always_skip_attention import condition_number, linear_attention, linear_attention_bound
from unsmooth.theory.anti_oversmoothing import low_pass_ratios

TOKENS = 49


def score_variance(small: bool) -> list[ArmResult]:
    """Var(q·k) = d and Var(−‖q − k‖₁) = 2d(1 − 2/π) for standard normal q and k."""
    draws, dims = (20_000 if small else 500_000), (16, 32, 64, 128)
    rows = []
    scores: dict[str, tuple[Callable[[int], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
        "q·k": (adder.dot_product_variance, lambda q, k: (q * k).sum(1)),
        "−‖q − k‖₁": (adder.adder_variance, lambda q, k: -(q - k).abs().sum(1)),
    }
    for name, (predict, score) in scores.items():
        measured = [float(score(_normal(draws, d), _normal(draws, d, seed=1)).var()) for d in dims]
        predicted = [float(predict(d)) for d in dims]
        rows.append(_row(name, "channels", dims, {"predicted": predicted, "measured": measured}))
    return rows


def identity_rank(small: bool) -> list[ArmResult]:
    """Equivalent rank of A and of A + I for two kinds of maps, and their distance to symmetric PSD matrices."""
    maps, sharpness = (64 if small else 1024), (0.25, 0.5, 1.0, 2.0, 4.0)
    logits, tokens = _normal(maps, TOKENS, TOKENS), _normal(maps, TOKENS, 16)
    distance = torch.cdist(tokens, tokens, p=1)
    makers: dict[str, Callable[[float], Tensor]] = {
        "softmax of normal logits": lambda beta: (beta * logits).softmax(-1),
        "L1 distances of normal tokens, scaled to sum 1": lambda beta: _symmetric(-beta * distance / 4),
    }
    return [
        _row(name, "sharpness", sharpness, _ranks([make(beta) for beta in sharpness])) for name, make in makers.items()
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


def low_pass(small: bool) -> list[ArmResult]:
    """‖HC‖/‖DC‖ after products of more and more softmax maps approaches 0."""
    depth, images = 12, 16 if small else 256
    x = _normal(images, TOKENS, 32) + 1
    rows = []
    for beta in (0.5, 2.0):
        maps = (beta * _normal(depth, images, TOKENS, TOKENS)).softmax(-1)
        ratios = low_pass_ratios(maps, x).mean(1).log10().tolist()
        rows.append(_row(f"logits of deviation {beta:g}", "map", range(depth + 1), {"log₁₀ ‖HC‖/‖DC‖": ratios}))
    return rows


def condition_cubed(small: bool) -> list[ArmResult]:
    """κ(XW_QW_KᵀXᵀXW_V) and its bound, for tokens with a wider and wider range of singular values."""
    trials, dim, powers = (32 if small else 512), 16, (0.25, 0.5, 1.0, 2.0)
    curves: dict[str, list[float]] = {
        "ln κ of the tokens": [], "ln κ of linear attention": [], "its bound": [], "largest excess over it": [],
    }  # fmt: skip
    query, key, value = (_normal(trials, dim, dim, seed=seed) for seed in (1, 2, 3))
    u, s, vh = torch.linalg.svd(_normal(trials, TOKENS, dim), full_matrices=False)
    for power in powers:
        x = u * s.unsqueeze(-2) ** power @ vh
        kappas = [
            kappa.log()
            for kappa in (
                condition_number(x),
                condition_number(linear_attention(x, query, key, value)),
                linear_attention_bound(x, query, key, value),
            )
        ]
        excess = (kappas[1] - kappas[2]).max()
        for label, drawn in zip(curves, (*kappas, excess), strict=True):
            curves[label].append(float(drawn.mean()))
    return [_row(f"{TOKENS} normal tokens of {dim} channels", "power of singular values", powers, curves)]


THEOREMS: dict[str, Callable[[bool], list[ArmResult]]] = {
    "score_variance": score_variance, "identity_rank": identity_rank, "low_pass": low_pass,
    "condition_cubed": condition_cubed,
}  # fmt: skip


def run_theorem(experiment: Experiment, request: RunRequest) -> tuple[list[GroupResult], str]:
    if experiment.theorem not in THEOREMS:
        raise unknown("theorem", experiment.theorem, THEOREMS)
    rows = THEOREMS[experiment.theorem](request.small)
    return [GroupResult(name=experiment.title, rows=rows)], "random numbers"


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _symmetric(logits: Tensor) -> Tensor:
    """exp(logits), scaled on both sides until rows sum to about one: symmetric, and PSD for L1 distances."""
    kernel = logits.exp()
    for _ in range(20):
        root = kernel.sum(-1).sqrt()
        kernel = kernel / (root.unsqueeze(-1) * root.unsqueeze(-2))
    return kernel


def _row(name: str, by: str, at: Sequence[float], curves: dict[str, list[float]]) -> ArmResult:
    measured = {
        label: MeasuredCurve(by=by, at=list(at), mean=list(means), sd=[None] * len(means))
        for label, means in curves.items()
    }
    return ArmResult(name=name, spec="", values={}, curves=measured)

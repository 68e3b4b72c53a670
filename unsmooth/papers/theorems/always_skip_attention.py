"""Always Skip Attention: the condition number of attention without softmax."""

from __future__ import annotations

import torch

from unsmooth.papers.theorems.draws import TOKENS, Theorem, normal, row
from unsmooth.results.reproduction import ArmResult
from unsmooth.theory.always_skip_attention import condition_number, linear_attention, linear_attention_bound


def condition_cubed(small: bool) -> list[ArmResult]:
    """κ(XW_QW_KᵀXᵀXW_V) and its bound, for tokens with a wider and wider range of singular values."""
    trials, dim, powers = (32 if small else 512), 16, (0.25, 0.5, 1.0, 2.0)
    curves: dict[str, list[float]] = {
        "ln κ of the tokens": [], "ln κ of linear attention": [], "its bound": [], "largest excess over it": [],
    }  # fmt: skip
    query, key, value = (normal(trials, dim, dim, seed=seed) for seed in (1, 2, 3))
    u, s, vh = torch.linalg.svd(normal(trials, TOKENS, dim), full_matrices=False)
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
    return [row(f"{TOKENS} normal tokens of {dim} channels", "power of singular values", powers, curves)]


THEOREMS: dict[str, Theorem] = {"condition_cubed": condition_cubed}

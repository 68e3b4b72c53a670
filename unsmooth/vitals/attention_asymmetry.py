"""Asymmetry of attention maps: ‖A − Aᵀ‖_F / (2‖A‖_F).

0 for a symmetric map, at most 1. `negative` is Σ|λ<0| / Σ|λ| of the eigenvalues of (A + Aᵀ)/2: 0 for a positive
semi-definite map. Proposition 1 of adder attention needs both to be 0; otherwise its step σ(A + I) = σ(A) + 1 does not
hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.vitals.base import MAP_SAMPLE, SQUARE, full, register


@register(
    title="map asymmetry",
    formula="‖A − Aᵀ‖_F / (2‖A‖_F)",
    reading="0: symmetric, as Proposition 1 of adder attention assumes; 1: A = −Aᵀ",
    family="attention",
    of="map",
    accepts=SQUARE,
    sample=MAP_SAMPLE,
    cubic=True,
    parts=(("negative", "sum of the negative eigenvalues of (A + Aᵀ)/2 over the sum of all, in absolute value"),),
    low=0.0,
    high=1.0,
)
def attention_asymmetry(a: Tensor) -> dict[str, Tensor]:
    a = full(a)
    values = torch.linalg.eigvalsh((a + a.mT) / 2)
    negative = values.clamp_max(0).abs().sum(dim=-1) / values.abs().sum(dim=-1)
    asymmetry = (a - a.mT).square().sum(dim=(-2, -1)).sqrt() / (2 * a.square().sum(dim=(-2, -1)).sqrt())
    return {"": asymmetry, "negative": negative}

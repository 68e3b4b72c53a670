"""How far a map is from symmetric and positive semi-definite, which Proposition 1 of adder attention needs.

The value is ‖A − Aᵀ‖_F / (2‖A‖_F): 0 for a symmetric map, at most 1. `negative` is Σ|λ<0| / Σ|λ| of the eigenvalues
of (A + Aᵀ)/2: 0 for a positive semi-definite one. Where either is far from 0, the proposition's step σ(A + I) =
σ(A) + 1 does not hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.vitals.base import MAP_SAMPLE, SQUARE, full, register


@register(
    title="map asymmetry",
    formula="‖A − Aᵀ‖_F / (2‖A‖_F)",
    reading="0: symmetric; far from 0: adder attention's Proposition 1 does not apply",
    family="attention",
    of="map",
    accepts=SQUARE,
    sample=MAP_SAMPLE,
    cubic=True,
    parts=(("negative", "share of negative eigenvalues of (A + Aᵀ)/2, by size"),),
    low=0.0,
    high=1.0,
)
def attention_asymmetry(a: Tensor) -> dict[str, Tensor]:
    a = full(a)
    values = torch.linalg.eigvalsh((a + a.mT) / 2)
    negative = values.clamp_max(0).abs().sum(dim=-1) / values.abs().sum(dim=-1)
    asymmetry = (a - a.mT).square().sum(dim=(-2, -1)).sqrt() / (2 * a.square().sum(dim=(-2, -1)).sqrt())
    return {"": asymmetry, "negative": negative}

"""Asymmetry of attention maps: ‖A − Aᵀ‖_F / (2‖A‖_F).

0 for a symmetric map, at most 1. `off_diagonal` leaves the diagonal out of ‖A‖, so that an added identity, as in the
effective maps of adder attention, does not change it; it is 0 for a diagonal map. `negative` is Σ|λ<0| / Σ|λ| of the
eigenvalues of (A + Aᵀ)/2: 0 for a positive semi-definite map. Proposition 1 of adder attention assumes a symmetric map
(Figure 2 of its supplement), and its step σ(A + I) = σ(A) + 1 needs a positive semi-definite one too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.utils.threads import one_thread
from unsmooth.vitals.base import MAP_DEFAULT, MAP_SAMPLE, SQUARE, full, register


@register(
    title="map asymmetry",
    formula="‖A − Aᵀ‖_F / (2‖A‖_F)",
    reading="0: symmetric, as Proposition 1 of adder attention assumes; 1: A = −Aᵀ",
    family="attention",
    of="map",
    accepts=SQUARE,
    sample=MAP_SAMPLE,
    default_sample=MAP_DEFAULT,
    cubic=True,
    parts=(
        ("off_diagonal", "‖A − Aᵀ‖_F / (2‖A − diag A‖_F): the same whether or not the identity is added"),
        ("negative", "sum of the negative eigenvalues of (A + Aᵀ)/2 over the sum of all, in absolute value"),
    ),
    low=0.0,
    high=1.0,
)
def attention_asymmetry(a: Tensor) -> dict[str, Tensor]:
    a = full(a)
    with one_thread():
        values = torch.linalg.eigvalsh((a + a.mT) / 2)
    negative = values.clamp_max(0).abs().sum(dim=-1) / values.abs().sum(dim=-1)
    skew, size = (a - a.mT).square().sum(dim=(-2, -1)).sqrt() / 2, a.square().sum(dim=(-2, -1)).sqrt()
    rest = a.masked_fill(torch.eye(a.shape[-1], dtype=torch.bool, device=a.device), 0).square().sum(dim=(-2, -1)).sqrt()
    return {"": skew / size, "off_diagonal": skew / rest.clamp_min(torch.finfo(a.dtype).tiny), "negative": negative}

"""Stable rank of the tokens: ‖X‖_F² / σ₁².

From 1 (one direction has all the energy) to min(n, d). It depends on the largest singular value; the effective rank
depends on all of them. Undefined if all tokens are zero.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import TOKEN_DEFAULT, TOKEN_SAMPLE, register


@register(
    title="stable rank",
    formula="‖X‖_F² / σ₁²",
    reading="1: one direction has all the energy; min(n, d): all have the same",
    family="rank",
    of="singular",
    sample=TOKEN_SAMPLE,
    default_sample=TOKEN_DEFAULT,
    low=1.0,
)
def stable_rank(s: Tensor) -> Tensor:
    s = s.double()
    return s.square().sum(dim=-1) / s[..., 0].square()

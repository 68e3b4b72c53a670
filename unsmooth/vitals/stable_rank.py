"""Stable rank: ‖X‖_F² / σ₁².

From 1 (one direction carries everything) to min(n, d). It looks at the largest singular value, where the effective
rank looks at all of them. Undefined where all tokens are zero.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import TOKEN_SAMPLE, register


@register(
    title="stable rank",
    formula="‖X‖_F² / σ₁²",
    reading="1: one direction carries everything",
    family="rank",
    of="singular",
    sample=TOKEN_SAMPLE,
    low=1.0,
)
def stable_rank(s: Tensor) -> Tensor:
    s = s.double()
    return s.square().sum(dim=-1) / s[..., 0].square()

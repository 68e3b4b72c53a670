"""What a branch adds against what was there: ‖f‖_F / ‖x‖_F, for the attention and the MLP branch.

f is what the residual sum adds, after layer scale; x the residual stream in front of it. 0: the branch does nothing;
far above 1: the skip is drowned, and the block behaves like one without it.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import full, register


@register(
    title="branch ratio",
    formula="‖f‖_F / ‖x‖_F",
    reading="0: the branch does nothing; far above 1: the skip is drowned",
    family="signal",
    of="branches",
    main="attn",
    parts=(("attn", "attention branch"), ("mlp", "MLP branch")),
    low=0.0,
)
def branch_ratio(x: Tensor, f: Tensor) -> Tensor:
    return full(f).flatten(1).norm(dim=1) / full(x).flatten(1).norm(dim=1)

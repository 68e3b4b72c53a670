"""Size of a branch relative to the skip: ‖f‖_F / ‖x‖_F, for the attention and the MLP branch.

f is what the residual sum adds, after layer scale; x is the residual stream before the sum. 0 if the branch does
nothing. Far above 1 the branch dominates, and the block behaves as if it had no skip.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import full, register


@register(
    title="branch ratio",
    formula="‖f‖_F / ‖x‖_F",
    reading="0: the branch does nothing; far above 1: it dominates the skip",
    family="signal",
    of="branches",
    main="attn",
    parts=(("attn", "attention branch"), ("mlp", "MLP branch")),
    low=0.0,
)
def branch_ratio(x: Tensor, f: Tensor) -> Tensor:
    return full(f).flatten(1).norm(dim=1) / full(x).flatten(1).norm(dim=1)

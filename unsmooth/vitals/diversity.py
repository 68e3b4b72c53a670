"""Diversity of tokens: r(Z) = min_z ‖Z − 1zᵀ‖, in two norms (augmented shortcuts).

In the Frobenius norm the minimum is at the mean token, so r(Z) = ‖HC[Z]‖_F. `composite` is √(‖·‖₁‖·‖∞) of HC[Z], an
upper bound of the minimum in that norm; ‖·‖₁ is the largest column sum of absolute values, ‖·‖∞ the largest row sum.
Both are 0 for equal tokens and grow with the norm of the tokens.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.bands import split
from unsmooth.vitals.base import full, register


@register(
    title="diversity",
    formula="r(Z) = ‖HC[Z]‖_F",
    reading="0: all tokens are equal; it grows with the norm of the tokens",
    family="similarity",
    of="tokens",
    parts=(("composite", "√(‖HC[Z]‖₁ ‖HC[Z]‖∞)"),),
    low=0.0,
)
def diversity(x: Tensor) -> dict[str, Tensor]:
    high = split(full(x))[1]
    size = high.abs()
    composite = (size.sum(dim=-2).amax(dim=-1) * size.sum(dim=-1).amax(dim=-1)).sqrt()
    return {"": high.flatten(1).norm(dim=1), "composite": composite}

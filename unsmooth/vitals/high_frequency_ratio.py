"""High-frequency share of the tokens: ‖HC[X]‖_F / ‖X‖_F, the part that is not their mean.

From 0 (all tokens equal) to 1 (tokens with mean zero); the anti-oversmoothing paper's Figure 11 (G.3). Undefined if all
tokens are zero.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.bands import split
from unsmooth.vitals.base import full, register


@register(
    title="high-frequency share",
    formula="‖HC[X]‖_F / ‖X‖_F, HC[X] = X − mean token",
    reading="0: all tokens are equal; 1: their mean is zero",
    family="similarity",
    of="tokens",
    low=0.0,
    high=1.0,
)
def high_frequency_ratio(x: Tensor) -> Tensor:
    x = full(x)
    return split(x)[1].flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)

"""Change of the high-frequency part since the input: ln(‖HC[X_l]‖_F / ‖HC[X_0]‖_F).

X_0 are the tokens before the first block. Below 0 the tokens are closer together than X_0 in absolute terms. A growing
residual stream hides this, so compare with `high_frequency_ratio`. This is the curve of the anti-oversmoothing paper's
Figure 1. Undefined if the first tokens are all equal, or if the width of the tokens changes.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.bands import split
from unsmooth.vitals.base import full, register


@register(
    title="high-frequency gain",
    formula="ln(‖HC[X_l]‖_F / ‖HC[X_0]‖_F)",
    reading="below 0: tokens are closer together than before the first block",
    family="similarity",
    of="growth",
)
def high_frequency_gain(x: Tensor, first: Tensor) -> Tensor:
    high, start = (split(full(t))[1].flatten(1).norm(dim=1) for t in (x, first))
    return (high / start).log()

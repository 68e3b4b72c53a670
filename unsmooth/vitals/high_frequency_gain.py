"""How much of the first tokens' variety is left: log(‖HC[X_l]‖_F / ‖HC[X_0]‖_F), natural logarithm.

X_0 are the tokens in front of the first block. Below 0, tokens have come closer together in absolute terms; a residual
stream that grows hides this, so read it beside the high-frequency share. The curve of the anti-oversmoothing paper's
Figure 1. Undefined where the first tokens are all equal, or where a host changes the width of its tokens.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.bands import split
from unsmooth.vitals.base import full, register


@register(
    title="high-frequency gain",
    formula="ln(‖HC[X_l]‖_F / ‖HC[X_0]‖_F)",
    reading="below 0: closer together than before the first block",
    family="similarity",
    of="growth",
)
def high_frequency_gain(x: Tensor, first: Tensor) -> Tensor:
    high, start = (split(full(t))[1].flatten(1).norm(dim=1) for t in (x, first))
    return (high / start).log()

"""Whether queries matter: the mean Jensen–Shannon divergence of a map's rows to their mean row, natural logarithm.

    mean_i JS(A_i, mean row),   JS(p, q) = H((p+q)/2) − (H(p) + H(q))/2

0: all rows are equal, so attention does not depend on the query; at most log 2, for each head. Of an effective map,
rows are made distributions as in `attention_entropy`.
"""

from __future__ import annotations

import math

from torch import Tensor

from unsmooth.vitals.base import OVER_TOKENS, distribution, plogp, register


@register(
    title="query insensitivity",
    formula="mean over queries of JS(A_i, mean row)",
    reading="0: attention does not depend on the query",
    family="attention",
    of="map",
    accepts=OVER_TOKENS,
    low=0.0,
    high=math.log(2),
)
def query_sensitivity(a: Tensor) -> Tensor:
    rows = distribution(a)
    mean = rows.mean(dim=-2, keepdim=True)
    own, shared = (plogp(p).sum(dim=-1) for p in (rows, mean))
    middle = plogp((rows + mean) / 2).sum(dim=-1)
    return ((own + shared) / 2 - middle).clamp_min(0).mean(dim=-1)

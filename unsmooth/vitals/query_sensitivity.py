"""Sensitivity of attention to the query: mean Jensen–Shannon divergence of the rows of a map from their mean row.

    mean_i JS(A_i, mean row),   JS(p, q) = H((p+q)/2) − (H(p) + H(q))/2

0 if all rows are equal, so that attention does not depend on the query; at most ln 2 (natural logarithm). Per
head. Rows of effective maps are normalised as in `attention_entropy`.
"""

from __future__ import annotations

import math

from torch import Tensor

from unsmooth.vitals.base import MAPS_DEFAULT, OVER_TOKENS, distribution, plogp, register


@register(
    title="query sensitivity",
    formula="mean over queries of JS(A_i, mean row)",
    reading="0: attention does not depend on the query; ln 2: every query attends to different keys",
    family="attention",
    of="map",
    accepts=OVER_TOKENS,
    default_sample=MAPS_DEFAULT,
    low=0.0,
    high=math.log(2),
)
def query_sensitivity(a: Tensor) -> Tensor:
    rows = distribution(a)
    mean = rows.mean(dim=-2, keepdim=True)
    own, shared = (plogp(p).sum(dim=-1) for p in (rows, mean))
    middle = plogp((rows + mean) / 2).sum(dim=-1)
    return ((own + shared) / 2 - middle).clamp_min(0).mean(dim=-1)

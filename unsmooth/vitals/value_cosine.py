"""Similarity of values: mean of cos(v_i, v_j) over pairs of keys, per head.

    (‖Σ_j v̂_j‖² − m) / (m(m − 1)),   v̂_j = v_j/‖v_j‖

If values are alike, the output of a head is nearly the same whatever its map is. 1 for equal values, 0 for orthogonal
ones, −1/(m−1) at least. A value of zero counts as orthogonal to all others.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import MAPS_DEFAULT, OVER_TOKENS, Undefined, full, register


@register(
    title="value similarity",
    formula="mean of cos(v_i, v_j) over pairs i < j",
    reading="1: all values are parallel, so the map does not matter; near 0: values differ",
    family="similarity",
    of="values",
    accepts=OVER_TOKENS,
    sample=MAPS_DEFAULT,
    default=False,
    low=-1.0,
    high=1.0,
)
def value_cosine(v: Tensor) -> Tensor:
    m = v.shape[-2]
    if m < 2:
        raise Undefined("it needs at least two keys")
    v = full(v)
    norms = v.norm(dim=-1, keepdim=True)
    unit = (v / norms).masked_fill(norms == 0, 0)
    own = (norms > 0).sum(dim=(-2, -1))
    return (unit.sum(dim=-2).square().sum(dim=-1) - own) / (m * (m - 1))

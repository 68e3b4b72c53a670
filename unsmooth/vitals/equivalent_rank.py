"""Equivalent rank of attention maps: the smallest r with f(r) = Σ_{t≤r}σ_t / Σσ ≥ 0.9 (adder attention, Proposition 1).

From 1 (uniform map) to ⌈0.9·m⌉ (identity), per head. `share` is the rank divided by the number of singular values,
`cumulative` the curve f, which increases and is concave for every map. Effective maps of adder attention include the
identity: m equal singular values are added to those of a uniform map, so the rank is near its maximum by construction.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import MAP_DEFAULT, MAP_SAMPLE, OVER_TOKENS, register

SHARE = 0.9


@register(
    title="equivalent rank of maps",
    formula="smallest r with Σ_{t≤r}σ_t ≥ 0.9·Σσ",
    reading="1: the map is an average; larger: it distinguishes more tokens",
    family="attention",
    of="map_singular",
    accepts=OVER_TOKENS,
    sample=MAP_SAMPLE,
    default_sample=MAP_DEFAULT,
    cubic=True,
    parts=(("share", "divided by the number of singular values"), ("cumulative", "f(r) = Σ_{t≤r}σ_t/Σσ")),
    low=1.0,
)
def equivalent_rank(s: Tensor) -> dict[str, Tensor]:
    s = s.double()
    cumulative = s.cumsum(dim=-1) / s.sum(dim=-1, keepdim=True)
    # The tolerance covers rounding.
    rank = (cumulative < SHARE - 1e-9).sum(dim=-1).double() + 1
    return {"": rank, "share": rank / s.shape[-1], "cumulative": cumulative}

"""Spectral gap of attention maps: 1 − σ₂/σ₁, from their singular values, per head.

A map with a large first singular value and small others writes nearly the same to every token: rank collapse in width
(Nait Saada et al., Mind the Gap, 2024), which subtracting the uniform map removes (`centred_attention`). 1 for the
uniform map and for all queries at one key, 0 for the identity. `ratio` is σ₁/σ₂, which is infinite for a map of rank
one and then left out of the mean.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import MAP_SAMPLE, OVER_TOKENS, Undefined, full, register


@register(
    title="spectral gap of maps",
    formula="1 − σ₂/σ₁",
    reading="0: the map passes several directions alike; 1: one direction, so all queries receive the same",
    family="rank",
    of="map_singular",
    accepts=OVER_TOKENS,
    sample=MAP_SAMPLE,
    default=False,
    cubic=True,
    parts=(("ratio", "σ₁/σ₂"),),
    low=0.0,
    high=1.0,
)
def spectral_gap(s: Tensor) -> dict[str, Tensor]:
    if s.shape[-1] < 2:
        raise Undefined("it needs at least two singular values")
    first, second = full(s[..., 0]), full(s[..., 1])
    return {"": 1 - second / first, "ratio": first / second}

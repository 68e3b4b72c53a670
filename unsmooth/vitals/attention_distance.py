"""How far attention reaches: mean over query patches of Σ_j a_ij·‖place_i − place_j‖, in pixels, for each head.

Between patch tokens only: prefix tokens are left out and rows made to sum to one again. 0 for the identity; the uniform
map gives the mean distance of two patches. Needs global attention over patches on a grid.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import distribution, register


@register(
    title="attention distance",
    formula="mean over queries of Σ_j a_ij·|place_i − place_j|, pixels",
    reading="small: local heads; large: the whole image",
    family="attention",
    of="map_grid",
    accepts=("global",),
    low=0.0,
)
def attention_distance(a: Tensor, distances: Tensor) -> Tensor:
    rows = distribution(a)
    # Σ_ij a_ij·D_ij as one product of long vectors, without a copy of the maps.
    return rows.flatten(-2) @ distances.to(rows.dtype).flatten() / rows.shape[-2]

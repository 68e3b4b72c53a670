"""Mean distance of attention: Σ_j a_ij·‖position_i − position_j‖ in pixels, mean over query patches, per head.

Only patch tokens are used, and rows are normalised to sum to one. 0 for the identity; the uniform map gives the mean
distance between two patches. Needs global attention over patches on a grid.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import MAPS_DEFAULT, distribution, register


@register(
    title="attention distance",
    formula="mean over queries of Σ_j a_ij·‖position_i − position_j‖, in pixels",
    reading="small: local attention; large: attention over the whole image",
    family="attention",
    of="map_grid",
    accepts=("global",),
    default_sample=MAPS_DEFAULT,
    low=0.0,
)
def attention_distance(a: Tensor, distances: Tensor) -> Tensor:
    rows = distribution(a)
    # Σ_ij a_ij·D_ij as one product of flat vectors avoids a copy of the maps.
    return rows.flatten(-2) @ distances.to(rows.dtype).flatten() / rows.shape[-2]

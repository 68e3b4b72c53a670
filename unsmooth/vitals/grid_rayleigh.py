"""Smoothness over the image: the Rayleigh quotient tr(XᵀLX)/tr(XᵀX), L the Laplacian of the patch grid.

tr(XᵀLX) sums ‖x_i − x_j‖² over adjacent patches. 0 for equal tokens; independent tokens with mean zero give the mean
number of neighbours (slightly below 4); at most 8 (a checkerboard). `centred` subtracts the mean token first, so that
only the pattern counts. Prefix tokens are excluded. Needs patches on a grid.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import Undefined, full, register


@register(
    title="grid Rayleigh quotient",
    formula="tr(XᵀLX)/tr(XᵀX), L the Laplacian of the patch grid",
    reading="0: smooth over the image; about 4: adjacent tokens are independent",
    family="similarity",
    of="grid",
    parts=(("centred", "after subtracting the mean token"),),
    low=0.0,
    high=8.0,
)
def grid_rayleigh(x: Tensor) -> dict[str, Tensor]:
    x = full(x)
    if x.shape[1] * x.shape[2] < 2:
        raise Undefined("it needs at least two patches")
    rough = x.diff(dim=1).square().sum(dim=(1, 2, 3)) + x.diff(dim=2).square().sum(dim=(1, 2, 3))
    centred = x - x.mean(dim=(1, 2), keepdim=True)
    return {"": rough / x.square().sum(dim=(1, 2, 3)), "centred": rough / centred.square().sum(dim=(1, 2, 3))}

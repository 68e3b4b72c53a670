"""Smoothness over the image: the Rayleigh quotient of the patch grid's Laplacian L, tr(XᵀLX)/tr(XᵀX).

tr(XᵀLX) sums ‖x_i − x_j‖² over patches that share an edge. 0: equal tokens; independent tokens without a common mean
give the mean number of neighbours (a little under 4); at most 8 (a chessboard). `centred` takes the mean token away
first, so that it sees the pattern alone. Prefix tokens are left out. Needs patches on a grid.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import Undefined, full, register


@register(
    title="grid Rayleigh quotient",
    formula="tr(XᵀLX)/tr(XᵀX), L the Laplacian of the patch grid",
    reading="0: smooth over the image; about 4: neighbours have nothing to do with each other",
    family="similarity",
    of="grid",
    parts=(("centred", "of the tokens without their mean"),),
    low=0.0,
    high=8.0,
)
def grid_rayleigh(x: Tensor) -> dict[str, Tensor]:
    x = full(x)
    if x.shape[1] * x.shape[2] < 2:
        raise Undefined("one patch has no neighbours")
    rough = x.diff(dim=1).square().sum(dim=(1, 2, 3)) + x.diff(dim=2).square().sum(dim=(1, 2, 3))
    centred = x - x.mean(dim=(1, 2), keepdim=True)
    return {"": rough / x.square().sum(dim=(1, 2, 3)), "centred": rough / centred.square().sum(dim=(1, 2, 3))}

"""How fast one map mixes tokens: |λ₂(A)|, the second largest eigenvalue in size (anti-oversmoothing, D.1).

Applied again and again, A draws tokens together at this rate: 0 for the uniform map, which does it in one step, 1 for
the identity, which never does. `coefficient` is Dobrushin's τ(A) = ½ max_ij ‖A_i − A_j‖₁, which bounds it from above
(`coefficient.measured` repeats |λ₂| beside it). One step may still stretch tokens apart: A is not normal. For maps
whose rows sum to one; of other effective maps it is the largest eigenvalue of A on tokens without their mean. Found by
squaring A ten times (Gelfand), to about one part in a hundred.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.vitals.base import SQUARE, THEORY_SAMPLE, register

SQUARINGS = 10


@register(
    title="mixing rate",
    formula="|λ₂(A)|",
    reading="0: tokens are mixed in one step; 1: never",
    family="theory",
    of="map",
    accepts=SQUARE,
    sample=THEORY_SAMPLE,
    cubic=True,
    parts=(
        ("coefficient", "τ(A), Dobrushin's bound of |λ₂(A)|"),
        ("coefficient.measured", "|λ₂(A)|"),
    ),
    low=0.0,
)
def mixing_rate(a: Tensor) -> dict[str, Tensor]:
    a = a.double()
    rate = spectral_radius(a - a.mean(dim=-2, keepdim=True))  # JA away: what is left acts on tokens without their mean
    tau = torch.cdist(a, a, p=1).amax(dim=(-2, -1)) / 2
    return {"": rate, "coefficient": tau, "coefficient.measured": rate}


def spectral_radius(a: Tensor) -> Tensor:
    """The largest eigenvalue in size of each matrix (…, n, n), by ‖A^m‖^{1/m} with m = 2^SQUARINGS."""
    log = torch.zeros(a.shape[:-2], dtype=a.dtype, device=a.device)
    for i in range(SQUARINGS + 1):
        size = a.flatten(-2).norm(dim=-1)
        log = log + size.log() / 2**i
        a = a / size.clamp_min(torch.finfo(a.dtype).tiny)[..., None, None]
        if i < SQUARINGS:
            a = a @ a
    return log.exp().nan_to_num(0.0)

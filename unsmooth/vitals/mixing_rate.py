"""Mixing rate of attention maps: |λ₂(A)|, the second largest absolute eigenvalue.

Repeated application of A contracts differences between tokens at this rate: 0 for the uniform map, which removes them
in one step, 1 for the identity, which keeps them. A single step may exceed it, because A is not normal. `coefficient`
is Dobrushin's τ(A) = ½ max_ij ‖A_i − A_j‖₁, which holds in every step: ‖a_iᵀA − πᵀ‖₁ ≤ τ‖a_i − π‖₁ for the rows a_i
and the stationary distribution π. This is the λ of anti-oversmoothing, D.1. It is an upper bound of |λ₂|
(`coefficient.measured`).
For maps whose rows do not sum to one, it is the largest absolute eigenvalue of A on tokens without their mean. Computed
by ten squarings of A (Gelfand), with a relative error of about 0.01.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.vitals.base import SQUARE, THEORY_SAMPLE, register

SQUARINGS = 10


@register(
    title="mixing rate",
    formula="|λ₂(A)|",
    reading="0: differences vanish at once; 1: tokens are never mixed",
    family="theory",
    of="map",
    accepts=SQUARE,
    sample=THEORY_SAMPLE,
    default=False,
    cubic=True,
    parts=(
        ("coefficient", "τ(A), Dobrushin's bound of one step (λ of D.1)"),
        ("coefficient.measured", "|λ₂(A)|"),
    ),
    low=0.0,
)
def mixing_rate(a: Tensor) -> dict[str, Tensor]:
    a = a.double()
    rate = spectral_radius(a - a.mean(dim=-2, keepdim=True))  # A − JA acts on tokens without their mean
    tau = torch.cdist(a, a, p=1).amax(dim=(-2, -1)) / 2
    return {"": rate, "coefficient": tau, "coefficient.measured": rate}


def spectral_radius(a: Tensor) -> Tensor:
    """Largest absolute eigenvalue of each matrix (…, n, n): ‖A^m‖^{1/m} with m = 2^SQUARINGS."""
    log = torch.zeros(a.shape[:-2], dtype=a.dtype, device=a.device)
    for i in range(SQUARINGS + 1):
        size = a.flatten(-2).norm(dim=-1)
        log = log + size.log() / 2**i
        a = a / size.clamp_min(torch.finfo(a.dtype).tiny)[..., None, None]
        if i < SQUARINGS:
            a = a @ a
    return log.exp().nan_to_num(0.0)

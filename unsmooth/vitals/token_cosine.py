"""Similarity of the tokens: mean |cos| over pairs of tokens.

    Σ_{i<j} |cos(X_i, X_j)| / (n(n−1)/2)                                 (anti-oversmoothing, Eq. 76)

From 0 (orthogonal tokens) to 1 (all on one line). A token of zeros counts as orthogonal to all others. Norms do not
matter: one very large token among equal ones changes it little. In healthy models it often falls with depth. Pairs are
computed some rows at a time, so that memory is linear in the tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.vitals.base import TOKEN_DEFAULT, Undefined, full, register

ENTRIES = 2**24  # cosines that are held at once
PARTS = 4  # parts of the rows; each is compared with itself and with later ones


@register(
    title="token similarity",
    formula="mean of |cos(X_i, X_j)| over pairs i < j",
    reading="1: all tokens on one line; 0: orthogonal tokens",
    family="similarity",
    of="tokens",
    quick_sample=TOKEN_DEFAULT,
    low=0.0,
    high=1.0,
)
def token_cosine(x: Tensor) -> Tensor:
    n = x.shape[-2]
    if n < 2:
        raise Undefined("it needs at least two tokens")
    u = F.normalize(full(x), dim=-1)
    total = torch.zeros(x.shape[:-2], dtype=u.dtype, device=u.device)
    step = max(1, min(-(-n // PARTS), ENTRIES // (n * total.numel() or 1)))
    for start in range(0, n, step):
        rows, later = u[..., start : start + step, :], u[..., start + step :, :]
        own = rows @ rows.mT
        own.diagonal(dim1=-2, dim2=-1).zero_()
        total += own.abs_().sum(dim=(-2, -1)) + 2 * (rows @ later.mT).abs_().sum(dim=(-2, -1))
    return total / (n * (n - 1))

"""Effective rank of the tokens: exp of the entropy of their singular values, exp(H(p)), p = σ/Σσ.

From 1 (all tokens on one line, equal tokens included) to min(n, d) (all singular values equal). `share` is the rank
divided by min(n, d). Undefined if all tokens are zero.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import TOKEN_DEFAULT, TOKEN_SAMPLE, plogp, register


@register(
    title="effective rank",
    formula="exp(−Σ p log p), p = σ/Σσ",
    reading="1: all tokens on one line; min(n, d): all directions are equally used",
    family="rank",
    of="singular",
    sample=TOKEN_SAMPLE,
    default_sample=TOKEN_DEFAULT,
    parts=(("share", "divided by min(n, d)"),),
    low=1.0,
)
def effective_rank(s: Tensor) -> dict[str, Tensor]:
    p = s.double() / s.double().sum(dim=-1, keepdim=True)
    rank = plogp(p).sum(dim=-1).neg().exp()
    return {"": rank, "share": rank / s.shape[-1]}

"""Condition number of the tokens: ln(σ₁/σ_min) (Always Skip Attention).

Of the block's output, of what each branch adds (`attn`, `mlp`), and of the residual sum (`attn+skip`, `mlp+skip`). Each
has a robust form, ln(σ₁/σ_k) with k = ⌈0.9·r⌉ of r singular values, which a single unused direction does not change.
0 for equal singular values. Single precision does not resolve singular values below 1e−7 of the largest one; they
count as 1e−7, so the value is at most 16.1. Undefined if all tokens are zero.
"""

from __future__ import annotations

import math

from torch import Tensor

from unsmooth.vitals.base import SITE_DEFAULT, SITE_SAMPLE, TOKEN_DEFAULT, TOKEN_SAMPLE, register

RESOLUTION = 1e-7
ROBUST = 0.9


@register(
    title="log condition number",
    formula="ln(σ₁/σ_min); robust: ln(σ₁/σ_⌈0.9r⌉)",
    reading="0: equal singular values; 16.1: singular in single precision",
    family="rank",
    of="singular",
    sites=("", "attn", "attn+skip", "mlp", "mlp+skip"),
    sample=TOKEN_SAMPLE,
    default_sample=TOKEN_DEFAULT,
    site_sample=SITE_SAMPLE,
    default_site_sample=SITE_DEFAULT,
    parts=(
        ("robust", "without the smallest tenth of the singular values"),
        ("attn", "output of the attention branch"),
        ("attn+skip", "sum of attention branch and skip"),
        ("mlp", "output of the MLP branch"),
        ("mlp+skip", "sum of MLP branch and skip"),
    ),
    low=0.0,
    high=-math.log(RESOLUTION),
)
def log_condition(s: Tensor) -> dict[str, Tensor]:
    s = s.double()
    first = s[..., 0]
    robust = s[..., max(1, math.ceil(ROBUST * s.shape[-1])) - 1]
    return {"": _log_ratio(first, s[..., -1]), "robust": _log_ratio(first, robust)}


def _log_ratio(first: Tensor, other: Tensor) -> Tensor:
    return (first / other.maximum(RESOLUTION * first)).log()

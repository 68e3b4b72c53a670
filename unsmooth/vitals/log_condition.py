"""Condition number, natural logarithm: log(σ₁/σ_min) of the tokens (Always Skip Attention).

Of the block's output, of what each branch adds (`attn`, `mlp`), and of the sum with the skip (`attn+skip`, `mlp+skip`).
Beside each stands the robust form, log(σ₁/σ_k) with k = ⌈0.9·r⌉ of r singular values: one direction that no token
uses does not decide it. 0 is a perfectly conditioned matrix. Single precision does not resolve singular values below
1e−7 of the largest one: they count as that, so the value never passes 16.1. Undefined where all tokens are zero.
"""

from __future__ import annotations

import math

from torch import Tensor

from unsmooth.vitals.base import SITE_SAMPLE, TOKEN_SAMPLE, register

RESOLUTION = 1e-7
ROBUST = 0.9


@register(
    title="log condition number",
    formula="ln(σ₁/σ_min); robust: ln(σ₁/σ_⌈0.9r⌉)",
    reading="0: all directions alike; 16.1: singular, as far as single precision can tell",
    family="rank",
    of="singular",
    sites=("", "attn", "attn+skip", "mlp", "mlp+skip"),
    sample=TOKEN_SAMPLE,
    site_sample=SITE_SAMPLE,
    parts=(
        ("robust", "the smallest tenth of the singular values left out"),
        ("attn", "what the attention branch adds"),
        ("attn+skip", "that, after the residual sum"),
        ("mlp", "what the MLP branch adds"),
        ("mlp+skip", "that, after the residual sum"),
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

"""Entropy of attention: −Σ_j a_ij log a_ij, mean over queries, per head (Context Broadcasting).

0 if every query attends to one key, log m for uniform attention over m keys. `share` is the entropy divided by log m.
High entropy is dense attention, low entropy sparse attention. Effective maps may have negative entries or rows that do
not sum to one: then rows are normalised absolute values. `others`, for square maps, is the entropy of the attention to
other tokens: rows without the diagonal, normalised. An added identity, as in the effective maps of adder attention,
does not change it. Its maximum is log(m − 1), and rows that attend to their own token only have 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.vitals.base import MAPS_DEFAULT, OVER_TOKENS, Undefined, distribution, plogp, register

SMALL = 1e-12  # rows with less attention to other tokens count as attention to their own token


@register(
    title="attention entropy",
    formula="−Σ_j a_ij log a_ij, mean over queries",
    reading="0: each query attends to one key; log m: it averages all keys",
    family="attention",
    of="map",
    accepts=OVER_TOKENS,
    default_sample=MAPS_DEFAULT,
    parts=(
        ("share", "divided by log m, its maximum"),
        ("others", "entropy of rows without the diagonal: the same whether or not the identity is added"),
    ),
    low=0.0,
)
def attention_entropy(a: Tensor) -> dict[str, Tensor]:
    if a.shape[-1] < 2:
        raise Undefined("it needs at least two keys")
    rows = distribution(a)
    terms = plogp(rows)
    entropy = terms.sum(dim=-1).neg().mean(dim=-1)
    parts = {"": entropy, "share": entropy / math.log(a.shape[-1])}
    if a.shape[-2] == a.shape[-1]:
        parts["others"] = _entropy_of_others(rows, terms)
    return parts


def _entropy_of_others(rows: Tensor, terms: Tensor) -> Tensor:
    """Entropy of p_j/s over j ≠ i with s = 1 − p_i, which is log s − Σ p_j log p_j / s. It overwrites `terms`."""
    terms.diagonal(dim1=-2, dim2=-1).zero_()
    own = rows.diagonal(dim1=-2, dim2=-1).double()
    rest = (rows.sum(dim=-1, dtype=torch.float64) - own).clamp_min(0)
    entropy = rest.log() - terms.sum(dim=-1, dtype=torch.float64) / rest
    return entropy.where(rest > SMALL, 0.0).mean(dim=-1)

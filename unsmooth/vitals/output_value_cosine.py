"""Similarity of the output of attention and the token's own value: mean of cos((AV)_i, v_i) over tokens, per head.

A head whose output points along the value of the token itself adds what the skip carries already; exclusive attention
subtracts that part (`exclusive_attention`). 1 for the identity map and for equal values; near 0 in high dimensions for
a map that attends to other tokens. Tokens with an output or a value of zero count as 0.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from unsmooth.vitals.base import MAPS_DEFAULT, SQUARE, full, register


@register(
    title="output and own value",
    formula="mean of cos((AV)_i, v_i)",
    reading="1: attention returns the token's own value; near 0: it brings something else",
    family="similarity",
    of="map_values",
    accepts=SQUARE,
    sample=MAPS_DEFAULT,
    default=False,
    low=-1.0,
    high=1.0,
)
def output_value_cosine(a: Tensor, v: Tensor) -> Tensor:
    a, v = full(a), full(v)
    return (F.normalize(a @ v, dim=-1) * F.normalize(v, dim=-1)).sum(dim=-1).mean(dim=-1)

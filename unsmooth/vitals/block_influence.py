"""How far a block turns its tokens: the mean over tokens of 1 − cos(before_i, after_i).

0: the block changes nothing but sizes and could be left out; 1: what comes out is orthogonal to what went in; at most
2. Only for blocks that keep number and width of the tokens.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from unsmooth.vitals.base import full, register


@register(
    title="block influence",
    formula="mean over tokens of 1 − cos(x_l, x_{l+1})",
    reading="0: the block could be left out; 1: the tokens are turned by a right angle",
    family="signal",
    of="change",
    low=0.0,
    high=2.0,
)
def block_influence(before: Tensor, after: Tensor) -> Tensor:
    return (1 - F.cosine_similarity(full(before), full(after), dim=-1)).mean(dim=-1)

"""Change of direction by a block: mean over tokens of 1 − cos(before_i, after_i).

0 if the block changes only norms and could be removed; 1 if its output is orthogonal to its input; at most 2. Defined
for blocks that keep the number and the width of the tokens.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from unsmooth.vitals.base import full, register


@register(
    title="block influence",
    formula="mean over tokens of 1 − cos(x_l, x_{l+1})",
    reading="0: the block could be removed; 1: its output is orthogonal to its input",
    family="signal",
    of="change",
    low=0.0,
    high=2.0,
)
def block_influence(before: Tensor, after: Tensor) -> Tensor:
    return (1 - F.cosine_similarity(full(before), full(after), dim=-1)).mean(dim=-1)

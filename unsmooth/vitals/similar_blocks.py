"""Blocks that attend alike: how many other blocks have maps whose mean cosine with this block's is at least 0.9.

    M(k, l) = mean over heads h and queries t of cos(A_k[h, t, :], A_l[h, t, :])

after DeepViT's similarity between layers; 0.9 is our reading of "similar". Heads are compared by their number. To hold
no more than one block's maps, 16 queries spread evenly over the tokens stand for all. `previous` is M with the block
before. Only blocks with equal numbers of heads, queries and keys are compared.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.vitals.base import MAP_SAMPLE, OVER_TOKENS, Collector, full, register

QUERIES = 16
ALIKE = 0.9


def map_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Mean over heads and queries of the cosine between rows of two maps (B, H, n, m): (B,)."""
    return F.cosine_similarity(full(a), full(b), dim=-1).mean(dim=(-2, -1))


@register(
    title="similar blocks",
    formula="number of other blocks with mean row cosine ≥ 0.9",
    reading="many: blocks attend alike, so depth adds little",
    family="attention",
    of="blocks",
    accepts=OVER_TOKENS,
    sample=MAP_SAMPLE,
    parts=(("previous", "mean cosine with the maps of the block before"),),
    low=0.0,
)
class SimilarBlocks(Collector):
    def __init__(self) -> None:
        self.rows: dict[int, Tensor] = {}

    def map(self, block: int, a: Tensor) -> None:
        n = a.shape[-2]
        chosen = torch.linspace(0, n - 1, min(n, QUERIES), device=a.device).round().long()
        self.rows[block] = a[..., chosen, :].clone()  # a view would keep the whole map

    def end_of_batch(self, labels: Tensor | None) -> dict[int, dict[str, Tensor]]:
        rows, self.rows = self.rows, {}
        alike: dict[tuple[int, int], Tensor] = {}
        for i in rows:
            for j in rows:
                if i < j and rows[i].shape == rows[j].shape:
                    alike[i, j] = alike[j, i] = map_similarity(rows[i], rows[j])
        out: dict[int, dict[str, Tensor]] = {}
        for i in rows:
            others = [value for (k, _), value in alike.items() if k == i]
            if others:
                cosines = torch.stack(others)
                count = (cosines >= ALIKE).sum(dim=0).double()
                out[i] = {"": count.masked_fill(cosines.isnan().any(dim=0), float("nan"))}
                if (i, i - 1) in alike:
                    out[i]["previous"] = alike[i, i - 1]
        return out

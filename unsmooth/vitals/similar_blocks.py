"""Similar attention maps: the number of other blocks whose maps have a mean row cosine of at least 0.9 with these.

    M(k, l) = mean over heads h and queries t of cos(A_k[h, t, :], A_l[h, t, :])

after DeepViT's similarity between layers; the threshold 0.9 is our choice. Heads are compared by index. To save memory,
16 evenly spaced queries represent all queries. `previous` is M with the previous block. Only blocks with equal numbers
of heads, queries and keys are compared.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.vitals.base import MAP_SAMPLE, OVER_TOKENS, Collector, full, register

QUERIES = 16
SIMILAR = 0.9


def map_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Mean over heads and queries of the cosine between rows of two maps (B, H, n, m): (B,)."""
    return F.cosine_similarity(full(a), full(b), dim=-1).mean(dim=(-2, -1))


@register(
    title="similar blocks",
    formula="number of other blocks with mean row cosine ≥ 0.9",
    reading="large: many blocks have similar maps, so depth adds little",
    family="attention",
    of="blocks",
    accepts=OVER_TOKENS,
    sample=MAP_SAMPLE,
    parts=(("previous", "mean row cosine with the maps of the previous block"),),
    low=0.0,
)
class SimilarBlocks(Collector):
    def __init__(self) -> None:
        self.rows: dict[int, Tensor] = {}

    def map(self, block: int, a: Tensor) -> None:
        n = a.shape[-2]
        queries = torch.linspace(0, n - 1, min(n, QUERIES), device=a.device).round().long()
        self.rows[block] = a[..., queries, :].clone()  # a view would keep the whole map in memory

    def end_of_batch(self, labels: Tensor | None) -> dict[int, dict[str, Tensor]]:
        rows, self.rows = self.rows, {}
        similarity: dict[tuple[int, int], Tensor] = {}
        for i in rows:
            for j in rows:
                if i < j and rows[i].shape == rows[j].shape:
                    similarity[i, j] = similarity[j, i] = map_similarity(rows[i], rows[j])
        out: dict[int, dict[str, Tensor]] = {}
        for i in rows:
            others = [value for (k, _), value in similarity.items() if k == i]
            if others:
                cosines = torch.stack(others)
                count = (cosines >= SIMILAR).sum(dim=0).double()
                out[i] = {"": count.masked_fill(cosines.isnan().any(dim=0), float("nan"))}
                if (i, i - 1) in similarity:
                    out[i]["previous"] = similarity[i, i - 1]
        return out

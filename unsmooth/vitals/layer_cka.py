"""Similarity of the representations of two blocks: linear CKA over images, by minibatches.

    CKA(X, Y) = Σ HSIC₁(K, L) / √(Σ HSIC₁(K, K) · Σ HSIC₁(L, L)),   K = XXᵀ, L = YYᵀ

X and Y have one row per image: all its tokens, flattened. HSIC₁ is the unbiased estimator, summed over batches. It
needs at least four images, so smaller batches are ignored. The value is the CKA of a block with the previous block;
`matrix` has its CKA with every block. 1: equal up to rotation and scale; near 0: unrelated. With few images it may be
slightly below 0 or above 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unsmooth.vitals.base import Collector, Undefined, full, register

RESOLUTION = 1e-12


def unbiased_hsic(k: Tensor, l: Tensor) -> Tensor:  # noqa: E741 - the paper's letter
    """HSIC₁ of two Gram matrices (…, B, B), B ≥ 4."""
    n = k.shape[-1]
    k, l = (g - torch.diag_embed(g.diagonal(dim1=-2, dim2=-1)) for g in (k, l))  # noqa: E741
    trace = (k * l).sum(dim=(-2, -1))
    sums = k.sum(dim=(-2, -1)) * l.sum(dim=(-2, -1)) / ((n - 1) * (n - 2))
    mixed = (k.sum(dim=-2) * l.sum(dim=-2)).sum(dim=-1) * 2 / (n - 2)
    return (trace + sums - mixed) / (n * (n - 3))


@register(
    title="CKA of blocks",
    formula="minibatch linear CKA with the previous block",
    reading="1: the same representation as the previous block; low: the block changes it",
    family="function",
    of="blocks",
    parts=(("matrix", "CKA with every block"),),
)
class LayerCKA(Collector):
    def __init__(self) -> None:
        self.grams: dict[int, Tensor] = {}
        self.sums: dict[tuple[int, int], Tensor] = {}
        self.blocks: list[int] = []
        self.sizes: dict[int, float] = {}

    def tokens(self, block: int, x: Tensor, class_token: bool) -> None:
        flat = full(x).flatten(1)
        gram = (flat @ flat.mT).double()
        if gram.isfinite().all():
            self.grams[block] = gram

    def end_of_batch(self, labels: Tensor | None) -> dict[int, dict[str, Tensor]]:
        grams, self.grams = self.grams, {}
        if not grams or next(iter(grams.values())).shape[0] < 4:
            return {}
        self.blocks = sorted({*self.blocks, *grams})
        for i, gram in grams.items():
            self.sizes[i] = self.sizes.get(i, 0.0) + float(gram.diagonal().mean() ** 2)
        for i in grams:
            for j in grams:
                if i <= j and grams[i].shape == grams[j].shape:
                    self.sums[i, j] = self.sums.get((i, j), torch.zeros(())) + unbiased_hsic(grams[i], grams[j])
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """The state that another process reads, which may not have this device."""
        return {**self.__dict__, "sums": {pair: total.cpu() for pair, total in self.sums.items()}}

    def merge(self, other: LayerCKA) -> None:
        self.blocks = sorted({*self.blocks, *other.blocks})
        for block, size in other.sizes.items():
            self.sizes[block] = self.sizes.get(block, 0.0) + size
        for pair, total in other.sums.items():
            self.sums[pair] = self.sums.get(pair, torch.zeros(())) + total

    def cka(self, i: int, j: int) -> float:
        i, j = min(i, j), max(i, j)
        if (i, j) not in self.sums:
            return float("nan")
        if any(self.sums[b, b] <= RESOLUTION * self.sizes[b] for b in (i, j)):
            return float("nan")  # equal images leave only rounding errors
        return float(self.sums[i, j] / (self.sums[i, i] * self.sums[j, j]).sqrt())

    def final(self) -> dict[int, dict[str, float | list[float]]]:
        if not self.sums:
            raise Undefined("CKA needs batches of at least 4 images")
        rows = {i: [self.cka(i, j) for j in self.blocks] for i in self.blocks}
        previous = {i: i - 1 for i in self.blocks if i - 1 in self.blocks}
        return {
            i: {"matrix": row, **({"": self.cka(i, previous[i])} if i in previous else {})} for i, row in rows.items()
        }

"""Class information in the tokens of a block: leave-one-out nearest-neighbour accuracy. Needs labels.

Each image is one vector: the class token if the host has one, otherwise the mean token; `mean` always uses the mean
token. The label of an image is predicted from its nearest other image by cosine. Chance is the share of the largest
class. `low` and `high` are the ends of its 95 % Wilson interval over images. `lost.matrix` compares blocks image by
image: its row i has, for each block j, the share of images that block j gets right and block i does not. This vital
keeps one vector per image and block, for at most 4,096 images. `unsmooth evaluate --tokens` scores held-out images
instead, also with a linear probe and with masks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.utils.intervals import wilson_interval
from unsmooth.vitals.base import Collector, Undefined, full, register

IMAGES = 4096
ROWS = 512  # images per block of the similarity matrix


def nearest(queries: Tensor, memory: Tensor, k: int, leave_one_out: bool = False) -> tuple[Tensor, Tensor]:
    """Cosines and indices of the k nearest memory vectors of each query, nearest first: (q, k) each.

    Args:
        queries: Vectors, (q, d).
        memory: Vectors, (m, d).
        k: Number of neighbours.
        leave_one_out: Whether query i is memory vector i, which is then not its own neighbour.
    """
    u, v = (F.normalize(full(x), dim=-1) for x in (queries, memory))
    chunks = []
    for start in range(0, len(u), ROWS):
        cosine = u[start : start + ROWS] @ v.mT
        if leave_one_out:
            rows = torch.arange(len(cosine), device=u.device)
            cosine[rows, rows + start] = -2
        chunks.append(cosine.topk(k, dim=-1))
    return torch.cat([chunk.values for chunk in chunks]), torch.cat([chunk.indices for chunk in chunks])


def nearest_neighbour_hits(features: Tensor, labels: Tensor) -> Tensor:
    """Whether the nearest other image of each image, by cosine, has the same label."""
    neighbour = nearest(features, features, 1, leave_one_out=True)[1][:, 0]
    return labels[neighbour] == labels


@register(
    title="depth probe",
    formula="leave-one-out nearest-neighbour accuracy by cosine, on the class token",
    reading="share of correct labels; where it falls, a block loses class information",
    family="function",
    of="blocks",
    sample=IMAGES,
    parts=(
        ("mean", "on the mean token"),
        ("low", "lower end of its 95 % interval"),
        ("high", "upper end of its 95 % interval"),
        ("lost.matrix", "share of images that another block gets right and this one does not"),
    ),
    low=0.0,
    high=1.0,
)
class DepthProbe(Collector):
    def __init__(self) -> None:
        self.features: dict[tuple[int, str], list[Tensor]] = {}
        self.labels: list[Tensor] = []

    def tokens(self, block: int, x: Tensor, class_token: bool) -> None:
        mean = full(x).mean(dim=1)
        for part, feature in {"": x[:, 0] if class_token else mean, "mean": mean}.items():
            self.features.setdefault((block, part), []).append(feature.float().cpu().clone())

    def end_of_batch(self, labels: Tensor | None) -> dict[int, dict[str, Tensor]]:
        if labels is None:
            self.features.clear()
        else:
            self.labels.append(labels.cpu())
        return {}

    def merge(self, other: DepthProbe) -> None:
        for key, features in other.features.items():
            self.features.setdefault(key, []).extend(features)
        self.labels.extend(other.labels)

    def final(self) -> dict[int, dict[str, Any]]:
        if not self.labels:
            raise Undefined("it needs labels: a folder of class folders, or an .npz file with labels")
        labels = torch.cat(self.labels)
        if labels.is_floating_point():
            raise Undefined("its labels are not integers")
        counts = labels.unique(return_counts=True)[1]
        if len(counts) < 2 or counts.max() < 2:
            raise Undefined("it needs at least two classes, and two images of one of them")
        out: dict[int, dict[str, Any]] = {}
        hits: dict[int, Tensor] = {}  # of images, in their order; those that are not finite are wrong
        for (block, part), features in self.features.items():
            stacked = torch.cat(features)
            finite = stacked.isfinite().all(dim=1)
            if (images := int(finite.sum())) > 1:
                right = nearest_neighbour_hits(stacked[finite], labels[finite])
                correct = int(right.sum())
                out.setdefault(block, {})[part] = correct / images
                if not part:
                    out[block]["low"], out[block]["high"] = wilson_interval(correct, images)
                    hits[block] = torch.zeros(len(labels), dtype=torch.bool).masked_scatter(finite, right)
        for block, own in hits.items():
            out[block]["lost.matrix"] = [
                float((hits[other] & ~own).double().mean()) if other in hits else math.nan
                for other in range(max(hits) + 1)
            ]
        return out

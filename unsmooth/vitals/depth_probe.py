"""What a block's tokens know of the labels: leave-one-out nearest-neighbour accuracy, where labels are given.

Each image is one vector: the class token where the host has one (`mean` always takes the mean token). Its label is
guessed from its nearest other image by cosine. Chance is the share of the largest class. The one vital that must keep
something of every image: one vector for each block, of at most 4,096 images.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.vitals.base import Collector, Undefined, full, register

IMAGES = 4096
ROWS = 512  # neighbours are sought for so many images at a time


def nearest_neighbour_accuracy(features: Tensor, labels: Tensor) -> float:
    """Share of images whose nearest other image, by cosine, has the same label."""
    u = F.normalize(full(features), dim=-1)
    right = 0
    for start in range(0, len(u), ROWS):
        cosine = u[start : start + ROWS] @ u.mT
        rows = torch.arange(len(cosine), device=u.device)
        cosine[rows, rows + start] = -2  # not its own neighbour
        right += int((labels[cosine.argmax(dim=-1)] == labels[start : start + ROWS]).sum())
    return right / len(u)


@register(
    title="depth probe",
    formula="leave-one-out nearest-neighbour accuracy by cosine, on the class token",
    reading="where it falls, the block loses what tells classes apart",
    family="function",
    of="blocks",
    sample=IMAGES,
    parts=(("mean", "on the mean token"),),
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

    def final(self) -> dict[int, dict[str, float]]:
        if not self.labels:
            raise Undefined("it needs labels: a folder of class folders, or an .npz file with labels")
        labels = torch.cat(self.labels)
        if labels.is_floating_point():
            raise Undefined("its labels are not whole numbers")
        counts = labels.unique(return_counts=True)[1]
        if len(counts) < 2 or counts.max() < 2:
            raise Undefined("it needs two classes, and one of them with two images")
        out: dict[int, dict[str, float]] = {}
        for (block, part), features in self.features.items():
            seen = torch.cat(features)
            whole = seen.isfinite().all(dim=1)
            if whole.sum() > 1:
                out.setdefault(block, {})[part] = nearest_neighbour_accuracy(seen[whole], labels[whole])
        return out

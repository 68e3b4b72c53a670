"""Probes of frozen tokens: what nearest neighbours and a linear map can read from them. Pure functions of tensors.

    nearest neighbours   class with the largest Σ exp(cos / 0.07) among the k nearest memory tokens by cosine (the rule
                         and the constants of DINO, Caron et al., ICCV 2021)
    linear               argmax of ridge regression on one-hot labels, in closed form:
                         W = (XᵀX + α n I)⁻¹ XᵀY, with channels of X standardised and columns of Y centred on the memory

α is the power of ten with the smallest squared error in cross-validation over five folds of memory images. All tokens
of an image are in one fold. Standardisation makes α comparable between blocks whose tokens have other norms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unsmooth.vitals.depth_probe import nearest

NEIGHBOURS = 20
TEMPERATURE = 0.07
PENALTIES = tuple(10.0**power for power in range(-5, 2))  # values of α
FOLDS = 5


@dataclass(frozen=True)
class NearestNeighbours:
    """Vote of the nearest memory tokens."""

    memory: Tensor
    labels: Tensor
    classes: int
    neighbours: int = NEIGHBOURS

    def predict(self, queries: Tensor) -> Tensor:
        """Class of each query, (q, d) → (q,)."""
        cosine, indices = nearest(queries, self.memory, min(self.neighbours, len(self.memory)))
        votes = cosine.new_zeros(len(queries), self.classes)
        # Only ratios matter: the nearest has weight 1, so that nothing overflows.
        weights = ((cosine - cosine[:, :1]) / TEMPERATURE).exp()
        return votes.scatter_add_(1, self.labels[indices], weights).argmax(dim=1)


@dataclass(frozen=True)
class LinearProbe:
    """A linear map of standardised tokens to classes."""

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    penalty: float

    def predict(self, queries: Tensor) -> Tensor:
        """Class of each query, (q, d) → (q,)."""
        return (((queries - self.mean) / self.scale) @ self.weight + self.bias).argmax(dim=1)


def fit_linear(memory: Tensor, labels: Tensor, images: Tensor, classes: int) -> LinearProbe:
    """Fit a linear probe in fp64 on the CPU.

    Args:
        memory: Tokens, (n, d).
        labels: Class of each token, (n,).
        images: Number of the memory image of each token, (n,).
        classes: Number of classes.
    """
    device, dtype = memory.device, memory.dtype
    x, labels, images = memory.double().cpu(), labels.cpu(), images.cpu()
    y = F.one_hot(labels, classes).double()
    mean, bias = x.mean(dim=0), y.mean(dim=0)
    scale = x.std(dim=0, unbiased=False)
    scale[scale <= torch.finfo(torch.float32).eps * x.abs().amax(dim=0)] = 1.0  # constant channels
    x, y = (x - mean) / scale, y - bias
    folds = images % FOLDS
    xx, xy = x.mT @ x, x.mT @ y
    errors = torch.zeros(len(PENALTIES), dtype=torch.double)
    for fold in folds.unique():
        held_x, held_y = x[folds == fold], y[folds == fold]
        rest = _ridge(xx - held_x.mT @ held_x, xy - held_x.mT @ held_y, len(x) - len(held_x))
        errors += torch.stack([((held_y - held_x @ weight) ** 2).sum() for weight in rest])
    best = int(errors.argmin())
    weight = _ridge(xx, xy, len(x))[best]
    mean, scale, weight, bias = (tensor.to(device, dtype) for tensor in (mean, scale, weight, bias))
    return LinearProbe(mean, scale, weight, bias, PENALTIES[best])


def _ridge(xx: Tensor, xy: Tensor, count: int) -> list[Tensor]:
    """(XᵀX + α n I)⁻¹ XᵀY for every α."""
    values, vectors = torch.linalg.eigh(xx)
    projected = vectors.mT @ xy
    count = max(count, 1)  # of no token, the map is zero
    return [vectors @ (projected / (values.clamp(min=0) + alpha * count)[:, None]) for alpha in PENALTIES]


def patch_counts(labels: Tensor, grid: tuple[int, int], classes: int) -> Tensor:
    """Labelled pixels of each class in each patch, (rows · columns, classes).

    Args:
        labels: Class of each pixel, (H, W); negative if unlabelled. Pixel (y, x) belongs to the patch in row
            ⌊y · rows / H⌋ and column ⌊x · columns / W⌋.
        grid: Rows and columns of patches.
        classes: Number of classes.
    """
    (height, width), (rows, columns) = labels.shape, grid
    row = torch.arange(height) * rows // height
    column = torch.arange(width) * columns // width
    patch = row[:, None] * columns + column
    there = labels >= 0
    pairs = patch[there] * classes + labels[there].long()
    return torch.bincount(pairs, minlength=rows * columns * classes).view(rows * columns, classes)


def patch_labels(counts: Tensor) -> Tensor:
    """Most frequent class of each patch, −1 where no pixel is labelled."""
    return torch.where(counts.sum(dim=1) > 0, counts.argmax(dim=1), -1)


def pixel_hits(counts: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
    """Correct pixels and predicted pixels of each class, if every pixel has the class of its patch.

    Args:
        counts: Result of `patch_counts`, (p, classes).
        predicted: Class of each patch, (p,).
    """
    classes = counts.shape[1]
    correct = counts.gather(1, predicted[:, None])[:, 0]
    return (
        torch.zeros(classes, dtype=torch.long).index_add_(0, predicted, correct),
        torch.zeros(classes, dtype=torch.long).index_add_(0, predicted, counts.sum(dim=1)),
    )

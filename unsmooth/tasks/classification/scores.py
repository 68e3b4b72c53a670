"""Scoring of a classifier, image by image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsmooth.data.datasets import ImageBatch
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.modes import autocast, device_of, eval_mode
from unsmooth.hosts.outputs import forward
from unsmooth.results.scores import NONE, RANKS, Array, Scores

SCORES = "scores.npz"  # file of a run: per-image correctness of its last model
Change = Callable[[Tensor, Tensor], Tensor]  # from images and labels, on the device of the model, to perturbed images


def merge_scores(scores: Sequence[Scores]) -> Scores:
    """Merge the scores of several batches or processes."""
    order = np.argsort(np.concatenate([each.indices for each in scores]), kind="stable")

    def column(name: str) -> Array:
        return np.concatenate([getattr(each, name) for each in scores])[order]

    skipped = {name: reason for each in scores for name, reason in each.skipped.items()}
    return Scores(column("indices"), column("labels"), column("ranked"), column("loss"), scores[0].classes, skipped)


def score(
    model: nn.Module, batches: Iterable[ImageBatch], classes: Sequence[int] | None = None, amp: str = "none",
    progress: Callable[[int], None] | None = None,
) -> Scores:  # fmt: skip
    """Score a model on its device, without changing its mode or gradients.

    Args:
        model: Classifier.
        batches: Batches of images with labels.
        classes: Classes of the model that predictions are restricted to (default: all).
        amp: Autocast precision.
        progress: Called with the number of images of each batch.

    Returns:
        Scores per image.
    """
    return score_each(model, batches, {"": None}, classes, amp, progress)[""]


def score_each(
    model: nn.Module, batches: Iterable[ImageBatch], changes: Mapping[str, Change | None],
    classes: Sequence[int] | None = None, amp: str = "none", progress: Callable[[int], None] | None = None,
) -> dict[str, Scores]:  # fmt: skip
    """Score a model on unchanged (None) and perturbed images, by name of the perturbation; images are read once."""
    device = device_of(model)
    by_change: dict[str, list[Scores]] = {name: [] for name in changes}
    skipped: dict[str, str] = {}
    with eval_mode(model):
        for batch in batches:
            skipped |= batch.skipped
            if len(batch.labels):
                images, labels = batch.images.to(device), batch.labels.to(device)
                for name, change in changes.items():
                    changed = images if change is None else change(images, labels)
                    with autocast(amp, device):
                        logits = forward(model, changed)
                    by_change[name].append(_scores(logits.float(), labels, batch.indices, classes))
            if progress is not None:
                progress(len(batch.labels) + len(batch.skipped))
    if not any(by_change.values()):
        first = next(iter(skipped.items()), None)
        reason = f": all {len(skipped)} are broken. First: {first[0]}: {first[1]}" if first else ""
        raise UnsmoothError(f"there is no valid image to score{reason}")
    merged = {name: merge_scores(scores) for name, scores in by_change.items()}
    for scores in merged.values():
        scores.skipped = skipped
    return merged


def _scores(logits: Tensor, labels: Tensor, indices: Tensor, classes: Sequence[int] | None) -> Scores:
    if labels.min() < 0 or labels.max() >= logits.shape[1]:
        wrong = next(int(y) for y in labels if not 0 <= y < logits.shape[1])
        raise UnsmoothError(
            f"the data has label {wrong}, but the model has {logits.shape[1]} classes (0 to {logits.shape[1] - 1})"
        )
    allowed = torch.arange(logits.shape[1]) if classes is None else torch.as_tensor(classes)
    allowed = allowed.to(logits.device)
    column = torch.full((logits.shape[1],), NONE, device=logits.device)
    column[allowed] = torch.arange(len(allowed), device=logits.device)
    if (column[labels] < 0).any():
        raise UnsmoothError(
            f"the data has label {int(labels[column[labels] < 0][0])}, which is not one of the allowed classes"
        )
    logits = logits[:, allowed]
    loss = F.cross_entropy(logits, column[labels], reduction="none")
    ranked = allowed[logits.topk(min(RANKS, len(allowed)), 1).indices]
    ranked[~logits.isfinite().all(1)] = NONE
    return Scores(indices.numpy(), labels.cpu().numpy(), ranked.cpu().numpy(), loss.cpu().numpy(), len(allowed))

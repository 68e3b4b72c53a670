"""Chosen vitals during training, and the block that broke first when a loss is not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.data.image_batches import NamedImages
from unsmooth.diagnosis import registry
from unsmooth.diagnosis.measure import measure
from unsmooth.hosts.anatomy import Anatomy


def follow(model: nn.Module, anatomy: Anatomy, images: Tensor, names: str) -> dict[str, list[Any]]:
    """The means of vitals by block, on some images; the model is as it was."""
    chosen = [vital for vital in registry.select(names) if vital.of != "model"]
    found = measure(model, anatomy, [NamedImages(images)], chosen)
    means: dict[str, list[Any]] = {}
    for vital in chosen:
        parts = found.values[vital.key]
        if parts:
            series = parts[vital.main if vital.main in parts else next(iter(parts))]
            means[vital.key] = [None if spread is None else spread.to_json()["mean"] for spread in series]
    return means


def first_broken(model: nn.Module, anatomy: Anatomy, images: Tensor, parts: int = 1) -> str:
    """Where NaN or Inf comes from, in words; the images are run in so many parts."""
    if not images.isfinite().all():
        return "the images themselves are not finite"
    found = measure(model, anatomy, [NamedImages(some) for some in images.chunk(parts)], []).broken
    if found is not None:
        return f"block {found[0]} went first, in its {found[1].removeprefix('a ')}"
    for name, value in model.state_dict().items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            return f"every block is finite, and {name} is not"
    return "every block is finite, so it is the head or the loss; try a lower learning rate, or amp = none"


def broken_gradient(model: nn.Module, anatomy: Anatomy) -> str:
    """The gradient that broke first on the way back from the loss, in words: the last one of the model."""
    names = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    if not names:
        return "no gradient is broken by itself; their norm is too large"
    block = next((b.index for b in anatomy.blocks if names[-1].startswith(f"{b.name}.")), None)
    where = f"block {block} went first" if block is not None else "it broke outside the blocks"
    return f"{where}, at the gradient of {names[-1]}"

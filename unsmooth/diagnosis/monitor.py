"""Vitals during training, and the first block that breaks when a loss is not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.data.image_batches import NamedImages
from unsmooth.diagnosis import registry
from unsmooth.diagnosis.measure import measure
from unsmooth.hosts.anatomy import Anatomy


def follow(model: nn.Module, anatomy: Anatomy, images: Tensor, names: str) -> dict[str, list[Any]]:
    """Means of vitals by block on some images. The model is not changed."""
    vitals = [vital for vital in registry.select(names) if vital.of != "model"]
    measured = measure(model, anatomy, [NamedImages(images)], vitals, requested=names.split(","))
    means: dict[str, list[Any]] = {}
    for vital in vitals:
        parts = measured.values[vital.key]
        if parts:
            series = parts[vital.main if vital.main in parts else next(iter(parts))]
            means[vital.key] = [None if spread is None else spread.rounded().mean for spread in series]
    return means


def first_broken(model: nn.Module, anatomy: Anatomy, images: Tensor, chunks: int = 1) -> str:
    """A sentence that says where NaN or infinity first appears. The images are run in `chunks`."""
    if not images.isfinite().all():
        return "the images contain NaN or infinity"
    broken = measure(model, anatomy, [NamedImages(chunk) for chunk in images.chunk(chunks)], []).broken
    if broken is not None:
        return f"block {broken[0]} broke first, in its {broken[1].removeprefix('a ')}"
    for name, value in model.state_dict().items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            return f"every block is finite, but {name} is not"
    return "every block is finite, so the head or the loss is not. Try a lower learning rate or amp=none"


def broken_gradient(model: nn.Module, anatomy: Anatomy) -> str:
    """A sentence that names the first broken gradient of the backward pass: the last one of the model."""
    names = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    if not names:
        return "every gradient is finite, but their norm is not"
    block = next((b.index for b in anatomy.blocks if names[-1].startswith(f"{b.name}.")), None)
    where = f"block {block}" if block is not None else "a module outside the blocks"
    return f"{where} broke first, in the gradient of {names[-1]}"

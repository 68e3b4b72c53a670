"""ViTMAEForPreTraining with remedies on its encoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import Example, image_size
from unsmooth.spec import ModelSpec
from unsmooth.tasks.huggingface import model_class, treat
from unsmooth.tasks.mae.start import give_positions, start_as_published

TASK, KIND, PRETRAINING = "mae", "vit_mae", "ViTMAEForPreTraining"


def check_config(config: Any) -> None:
    """Refuse what the model would stumble over later: images that are no grid of patches, masks of all or nothing."""
    patch, side = config.patch_size, config.image_size
    if not (isinstance(patch, int) and isinstance(side, int)) or side % patch:
        raise UnsmoothError(f"mae needs square images of whole patches, not image_size={side}, patch_size={patch}")
    for name in ("hidden_size", "decoder_hidden_size"):
        if getattr(config, name) % 4:
            raise UnsmoothError(f"{name} must be a multiple of 4, for sines and cosines of rows and columns")
    patches = (side // patch) ** 2
    kept = int(patches * (1 - config.mask_ratio))
    if not 0 < kept < patches:
        raise UnsmoothError(f"mask_ratio={config.mask_ratio} keeps {kept} of {patches} patches; keep some, and not all")


def patches_of(config: Any) -> int:
    return (config.image_size // config.patch_size) ** 2


def build(config: Any, spec: ModelSpec, seed: int | None = None, weights: str = "") -> nn.Module:
    """The model: with published weights of a folder or hub id, from scratch by a seed, or to be filled."""
    made = model_class(PRETRAINING)
    if seed is not None:
        torch.manual_seed(seed)
    model: Any = made.from_pretrained(weights, config=config) if weights else made(config)
    if seed is not None and not weights:
        start_as_published(model)
    give_positions(model)
    # Read off with no patch masked: then a remedy sees the class token and the patches that fine-tuning will have.
    with unmasked(model.vit) as example:
        treat(model.vit, spec, example)
    return model


@contextmanager
def unmasked(encoder: Any) -> Iterator[Example]:
    """The encoder takes whole images meanwhile; given is one as keyword arguments, with patches in their order."""
    config, parameter = encoder.config, next(encoder.parameters())
    ratio, config.mask_ratio = config.mask_ratio, 0.0
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, *image_size(encoder), generator=generator).to(parameter.device, parameter.dtype)
    try:
        yield {"pixel_values": image, "noise": in_order(1, patches_of(config), parameter.device)}
    finally:
        config.mask_ratio = ratio


def in_order(images: int, patches: int, device: torch.device) -> torch.Tensor:
    """Mask noise that shuffles nothing."""
    return torch.arange(patches, dtype=torch.float32, device=device).repeat(images, 1)

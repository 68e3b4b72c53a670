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
from unsmooth.tasks.huggingface import apply_remedies, model_class
from unsmooth.tasks.mae.start import fill_positions, init_as_published

TASK, KIND, PRETRAINING = "mae", "vit_mae", "ViTMAEForPreTraining"


def check_config(config: Any) -> None:
    """Raise if images are not a grid of patches, or if a mask would cover no or all patches."""
    patch, side = config.patch_size, config.image_size
    if not (isinstance(patch, int) and isinstance(side, int)) or side % patch:
        raise UnsmoothError(f"image_size must be a multiple of patch_size for mae (got {side} and {patch})")
    for name in ("hidden_size", "decoder_hidden_size"):
        if getattr(config, name) % 4:
            raise UnsmoothError(
                f"{name} must be a multiple of 4 for 2-D sine-cosine positions (got {getattr(config, name)})"
            )
    patches = (side // patch) ** 2
    visible = int(patches * (1 - config.mask_ratio))
    if not 0 < visible < patches:
        raise UnsmoothError(
            f"mask_ratio={config.mask_ratio} leaves {visible} of {patches} patches visible. Use another mask_ratio."
        )


def num_patches(config: Any) -> int:
    return (config.image_size // config.patch_size) ** 2


def build(config: Any, spec: ModelSpec, seed: int | None = None, weights: str = "") -> nn.Module:
    """Build the model: with pretrained weights of a folder or hub id, from scratch with a seed, or to load weights."""
    model_type = model_class(PRETRAINING)
    if seed is not None:
        torch.manual_seed(seed)
    model: Any = model_type.from_pretrained(weights, config=config) if weights else model_type(config)
    if seed is not None and not weights:
        init_as_published(model)
    fill_positions(model)
    # Traced without a mask, so that remedies see the class token and patches of fine-tuning.
    with unmasked(model.vit) as example:
        apply_remedies(model.vit, spec, example)
    return model


@contextmanager
def unmasked(encoder: Any) -> Iterator[Example]:
    """Disable masking; yields the keyword arguments of an example image with patches in order."""
    config, parameter = encoder.config, next(encoder.parameters())
    ratio, config.mask_ratio = config.mask_ratio, 0.0
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, *image_size(encoder), generator=generator).to(parameter.device, parameter.dtype)
    try:
        yield {"pixel_values": image, "noise": ordered_noise(1, num_patches(config), parameter.device)}
    finally:
        config.mask_ratio = ratio


def ordered_noise(images: int, patches: int, device: torch.device) -> torch.Tensor:
    """Mask noise that keeps patches in order."""
    return torch.arange(patches, dtype=torch.float32, device=device).repeat(images, 1)

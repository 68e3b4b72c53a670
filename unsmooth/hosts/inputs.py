"""Inputs of a host: an example, a batch, the image size, and how to call it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.modes import device_of, dtype_of

Example = dict[str, Any]
TEXT_LENGTH = 4  # tokens of the text that a host for images and text is called with


def example_input(model: nn.Module) -> Example:
    """An input that the host accepts, as an argument of `run`: one image of noise, with text if the host needs it."""
    if next(model.parameters(), None) is None:
        raise UnsmoothError(f"{type(model).__name__} has no parameters, so it is not a vision transformer")
    return batch_inputs(model, torch.randn(1, *image_size(model), generator=torch.Generator().manual_seed(0)))


def batch_inputs(model: nn.Module, images: Tensor) -> Example:
    """A batch of images as an argument of `run`: on the host's device, in its dtype, with text if the host needs it."""
    images = images.to(device_of(model), dtype_of(model))
    name = "pixel_values" if takes_pixel_values(model) else "image"
    return {name: images, **text_inputs(model, len(images))}


def takes_pixel_values(model: nn.Module) -> bool:
    """Whether images are passed as `pixel_values=`, as in Hugging Face models, and not by position."""
    return getattr(model, "config", None) is not None


def text_inputs(model: nn.Module, count: int) -> Example:
    """A short text for each of `count` images if the host takes text, such as ViLT; an empty dict otherwise."""
    if not takes_pixel_values(model) or "input_ids" not in inspect.signature(model.forward).parameters:
        return {}
    text = torch.arange(1, TEXT_LENGTH + 1, device=device_of(model)).expand(count, TEXT_LENGTH)
    return {"input_ids": text, "attention_mask": torch.ones_like(text)}


def run(model: nn.Module, example: Mapping[str, Any]) -> Any:
    """Call a host: `image` is passed by position (timm, torchvision), everything else by name (Hugging Face)."""
    named = {key: value for key, value in example.items() if key != "image"}
    return model(example["image"], **named) if "image" in example else model(**named)


def image_size(model: nn.Module) -> tuple[int, int, int]:
    """Channels, height and width of the images that a host was built for."""
    config = getattr(model, "config", None)
    if config is not None:
        config = getattr(config, "vision_config", config)
        side = getattr(config, "image_size", 224)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        return getattr(config, "num_channels", 3), height, width
    settings = getattr(model, "pretrained_cfg", None) or {}
    channels, height, width = settings.get("input_size", (3, 224, 224))
    embed = getattr(model, "patch_embed", None)
    side = getattr(embed, "img_size", None) or getattr(model, "image_size", None)
    if side is not None:
        height, width = side if isinstance(side, list | tuple) else (side, side)
    channels = getattr(model, "in_chans", channels)  # for hosts without a convolution
    convolution = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    if convolution is not None:
        channels = convolution.in_channels
    return channels, height, width


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor in a value: the value itself, or one inside nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((t for t in map(first_tensor, value) if t is not None), None)
    return None

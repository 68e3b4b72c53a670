"""The input that a host accepts: an example, its image size, and how to call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError

Example = dict[str, Any]


def example_input(model: nn.Module) -> Example:
    """One input that the host accepts, as keyword arguments for `run`: an image of noise, text where needed."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise UnsmoothError("this model has no parameters, so it is no vision transformer")
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, *image_size(model), generator=generator).to(parameter.device, parameter.dtype)
    config = getattr(model, "config", None)
    if config is None:
        return {"image": image}
    example: Example = {"pixel_values": image}
    if "input_ids" in getattr(model, "forward", model.__call__).__code__.co_varnames:
        text = torch.arange(1, 5, device=parameter.device).unsqueeze(0)
        example |= {"input_ids": text, "attention_mask": torch.ones_like(text)}
    return example


def run(model: nn.Module, example: Mapping[str, Any]) -> Any:
    """Call a host with an example: timm and torchvision take the image by place, Hugging Face by name."""
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
    channels = getattr(model, "in_chans", channels)  # of a host without a convolution
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    if first is not None:
        channels = first.in_channels
    return channels, height, width


def first_tensor(value: Any) -> Tensor | None:
    """The tensor that a module takes or gives first, alone or in a tuple, a list or a dict."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((t for t in map(first_tensor, value) if t is not None), None)
    return None


def example(model: nn.Module, images: Tensor) -> Example:
    """What `hosts.run` needs to run a batch: on the host's device, in its precision, with text where it wants any."""
    single = example_input(model)
    name = "image" if "image" in single else "pixel_values"
    like: Tensor = single[name]
    others = {key: value.expand(len(images), *value.shape[1:]) for key, value in single.items() if key != name}
    return {name: images.to(like.device, like.dtype), **others}

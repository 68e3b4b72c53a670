"""Inputs of a host: an example, a batch, the image size, and how to call it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, first_line
from unsmooth.hosts.modes import device_of, dtype_of, eval_mode

Example = dict[str, Any]
SIDES = ("img_size", "image_size", "input_size", "resolution")  # attributes with the size of images
USUAL = (224, 32, 64, 28, 384, 96, 128, 256, 512)  # pixels, tried in this order
MAX_OTHER = 9  # class, distillation and register tokens in a position embedding
TEXT_LENGTH = 4  # tokens of the text that a host for images and text is called with

# Sizes of hosts that do not tell theirs, found by trying.
_TRIED: WeakKeyDictionary[nn.Module, tuple[int, int, int]] = WeakKeyDictionary()


def example_input(model: nn.Module) -> Example:
    """An input that the host accepts, as an argument of `run`: one image of noise, with text if the host needs it."""
    if next(model.parameters(), None) is None:
        raise UnsmoothError(f"{type(model).__name__} has no parameters, so it is not a vision transformer")
    if not describes_input(model) and _known_side(model) is None and model not in _TRIED:
        _TRIED[model] = _usual_size(model)
    return batch_inputs(model, torch.randn(1, *image_size(model), generator=torch.Generator().manual_seed(0)))


def describes_input(model: nn.Module) -> bool:
    """Whether a host has the configuration of its library, with the size of its images."""
    return bool(getattr(model, "config", None) is not None or getattr(model, "pretrained_cfg", None))


def _usual_size(model: nn.Module) -> tuple[int, int, int]:
    """The first of the usual sizes that a host accepts; the default size if it accepts none."""
    channels, *default = image_size(model)
    for side in USUAL:
        try:
            with eval_mode(model):
                run(model, batch_inputs(model, torch.zeros(1, channels, side, side)))
            return channels, side, side
        except Exception:  # a host may fail in any way on an image that it was not made for
            continue
    return channels, default[0], default[1]


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


def run_images(model: nn.Module, images: Tensor) -> Any:
    """Call a host on a batch of images. Images of another size than its own that it refuses are named as the cause."""
    try:
        return run(model, batch_inputs(model, images))
    except (AssertionError, RuntimeError, ValueError) as error:
        given, own = tuple(images.shape[1:]), image_size(model)
        if isinstance(error, UnsmoothError | torch.OutOfMemoryError) or given == own:
            raise
        advice = f"Resize them to {own[1]} × {own[2]}"
        if given[0] == own[0] and given[1] == given[2]:
            advice += f", or build the host for them (img_size={given[1]})"
        raise UnsmoothError(
            f"{type(model).__name__} refuses images of {_size(given)} ({first_line(error)}): it takes {_size(own)}. "
            f"{advice}."
        ) from error


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} channels and {' × '.join(map(str, shape[1:]))} pixels"


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
    side = _known_side(model)
    if side is None and model in _TRIED:
        return _TRIED[model]
    if side is not None:
        height, width = side if isinstance(side, list | tuple) else (side, side)
    channels = getattr(model, "in_chans", channels)  # for hosts without a convolution
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Conv2d) and first.kernel_size != (1, 1):  # or else it embeds pixels of whole patches
        channels = first.in_channels
    return channels, height, width


def _known_side(model: nn.Module) -> Any:
    """The size of images that attributes or the position embedding of a host tell; None if they do not."""
    side = next((side for owner in _owners(model) for name in SIDES if (side := _side(owner, name))), None)
    return side if side is not None or describes_input(model) else _side_of_positions(model)


def _owners(model: nn.Module) -> list[Any]:
    """The objects that may say for which images a host was built."""
    embeds = [module for name, module in model.named_modules() if "embed" in name.rpartition(".")[2]]
    return [getattr(model, "patch_embed", None), model, *embeds]


def _side(owner: Any, name: str) -> Any:
    """The height and width, or both as one number, that an attribute holds; None if it holds something else."""
    value = getattr(owner, name, None)
    numbers = value if isinstance(value, list | tuple) and len(value) == 2 else [value]
    return value if all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers) else None


def _side_of_positions(model: nn.Module) -> int | None:
    """The side of square images with as many patches as the position embedding has rows, less a few other tokens."""
    patch = next((m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == m.stride != (1, 1)), None)
    rows = next((p.shape[-2] for name, p in model.named_parameters() if "pos" in name and p.ndim >= 2), 0)
    if patch is None or not rows:
        return None
    grid = next((math.isqrt(rows - k) for k in range(MAX_OTHER) if math.isqrt(max(rows - k, 0)) ** 2 == rows - k), 0)
    return grid * int(patch.stride[0]) or None


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor in a value: the value itself, or one inside nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((t for t in map(first_tensor, value) if t is not None), None)
    return None

"""Inputs of a host: an example, a batch, their shape, and how to call it.

Most hosts take images (channels, height, width). Video hosts take clips, (frames, channels, height, width) in
transformers and (channels, frames, height, width) elsewhere; audio hosts take spectrograms (time, frequency) or signals
(channels, time). What a host needs besides, such as text or a timestep, is made up by `unsmooth.hosts.companions`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, first_line
from unsmooth.hosts.companions import companions, forward_parameters
from unsmooth.hosts.modes import device_of, dtype_of, eval_mode

Example = dict[str, Any]
SIDES = ("img_size", "image_size", "input_size", "resolution")  # attributes with the size of images
CHANNELS = ("num_channels", "in_channels", "in_chans")  # attributes with the channels of images
USUAL = (224, 32, 64, 28, 384, 96, 128, 256, 512)  # pixels, tried in this order
MAX_OTHER = 9  # class, distillation and register tokens in a position embedding
NAMED = ("pixel_values_videos", "pixel_values", "input_values")  # arguments of transformers that take the input
FRAMES = ("num_frames", "frames_per_clip")  # attributes with the frames of a clip
KINDS = {2: "spectrograms or signals", 3: "images", 4: "clips"}  # by the axes of one item


class _TriedSizes:
    """Sizes of images of hosts that do not tell theirs, found by trying.

    They are not kept on the host, since reading a host must not change it, and are forgotten with it.
    """

    def __init__(self) -> None:
        self.sizes: WeakKeyDictionary[nn.Module, tuple[int, int, int]] = WeakKeyDictionary()

    def find(self, model: nn.Module) -> None:
        if model not in self.sizes:
            self.sizes[model] = _usual_size(model)


_tried = _TriedSizes()


def example_input(model: nn.Module) -> Example:
    """An input that the host accepts, as an argument of `run`: noise of its shape, with text if the host needs it.

    A model of your own may hold one as `example_input_array`, as in Lightning.
    """
    if next(model.parameters(), None) is None:
        raise UnsmoothError(f"{type(model).__name__} has no parameters, so it is not a vision transformer")
    own = getattr(model, "example_input_array", None)
    if isinstance(own, Mapping):
        return dict(own)
    if not isinstance(own, Tensor) and not describes_input(model) and _known_side(model) is None:
        _tried.find(model)
    return batch_inputs(model, torch.randn(1, *input_shape(model), generator=torch.Generator().manual_seed(0)))


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


def batch_inputs(model: nn.Module, items: Tensor) -> Example:
    """A batch of images, or what else the host takes, as an argument of `run`: on the host's device, in its dtype.

    Text, timesteps and the like are added if the host needs them.
    """
    items = items.to(device_of(model), dtype_of(model))
    name = input_name(model)
    if "spatial_shapes" in forward_parameters(model):
        return _flat_patches(model, items)
    return {name: items, **companions(model, name, items)}


def input_name(model: nn.Module) -> str:
    """The argument that takes the input, as in Hugging Face models; "image" if it is passed by position."""
    if getattr(model, "config", None) is None:
        return "image"
    parameters = forward_parameters(model)
    return next((name for name in NAMED if name in parameters), "image")


def _flat_patches(model: nn.Module, images: Tensor) -> Example:
    """Images as SigLIP 2 takes them: flat patches (n, side · side · channels), with rows and columns of their grid."""
    side = _config(model).patch_size
    rows, columns = (length // side for length in images.shape[-2:])
    patches = images[..., : rows * side, : columns * side].unflatten(3, (columns, side)).unflatten(2, (rows, side))
    shapes = torch.tensor([[rows, columns]], device=images.device).expand(len(images), 2)
    return {
        "pixel_values": patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2),
        "pixel_attention_mask": shapes.new_ones(len(images), rows * columns),
        "spatial_shapes": shapes,
    }


def run(model: nn.Module, example: Mapping[str, Any]) -> Any:
    """Call a host: `image` is passed by position (timm, torchvision), everything else by name (Hugging Face)."""
    named = {key: value for key, value in example.items() if key != "image"}
    return model(example["image"], **named) if "image" in example else model(**named)


def run_images(model: nn.Module, images: Tensor) -> Any:
    """Call a host on a batch of images. Images of another size than its own that it refuses are named as the cause."""
    try:
        return run(model, batch_inputs(model, images))
    except (AssertionError, RuntimeError, ValueError) as error:
        given, own = tuple(images.shape[1:]), input_shape(model)
        if isinstance(error, UnsmoothError | torch.OutOfMemoryError) or given == own:
            raise
        if len(given) != 3 or len(own) != 3:
            raise UnsmoothError(wrong_input(model, given)) from error
        advice = f"Resize them to {own[1]} × {own[2]}"
        if given[0] == own[0] and given[1] == given[2]:
            advice += f", or build the host for them (img_size={given[1]})"
        raise UnsmoothError(
            f"{type(model).__name__} does not support images of {_size(given)} ({first_line(error)}). "
            f"It expects {_size(own)}. {advice}."
        ) from error


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} channels and {' × '.join(map(str, shape[1:]))} pixels"


def wrong_input(model: nn.Module, given: object) -> str:
    """The message for an input of another shape than the host takes."""
    own = input_shape(model)
    return (
        f"{type(model).__name__} takes {KINDS.get(len(own), 'inputs')} of shape {own} (got {given}). "
        f"Pass a float tensor of shape {('N', *own)!r}, or a loader of such batches.".replace("'", "")
    )


def input_shape(model: nn.Module) -> tuple[int, ...]:
    """The shape of one input: an image, a clip, a spectrogram or a signal (see the top of this file)."""
    own = getattr(model, "example_input_array", None)
    if isinstance(own, Tensor):
        return tuple(own.shape[1:])
    config = _config(model)
    if hasattr(config, "num_mel_bins"):
        return config.max_length, config.num_mel_bins
    channels, height, width = image_size(model)
    if config is not None:
        frames = next((getattr(config, name) for name in FRAMES if hasattr(config, name)), None)
        return (frames, channels, height, width) if frames else (channels, height, width)
    first = next((m for m in model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)
    if isinstance(first, nn.Conv3d):
        return channels, _frames_of(model), height, width
    return channels, height, width


def _frames_of(model: nn.Module) -> int:
    """Frames of the clips of a host outside transformers: as an attribute tells, 16 otherwise."""
    names = (*FRAMES, "frames", "temporal_size")
    frames = next((getattr(model, name) for name in names if isinstance(getattr(model, name, None), int)), None)
    return 16 if frames is None else frames


def _config(model: nn.Module) -> Any:
    """The configuration of a Hugging Face model, or that of its vision tower; None for other hosts."""
    config = getattr(model, "config", None)
    return getattr(config, "vision_config", config)


def image_size(model: nn.Module) -> tuple[int, int, int]:
    """Channels, height and width of the images, or frames, that a host was built for."""
    config = _config(model)
    if config is not None:
        side = next((side for name in (*SIDES, "crop_size", "sample_size") if (side := _side(config, name))), None)
        if side is None and hasattr(config, "num_patches"):  # patches in any number, on any grid
            side = math.isqrt(config.num_patches) * config.patch_size
        height, width = side if isinstance(side, list | tuple) else (side or 224, side or 224)
        channels = next((n for name in CHANNELS if isinstance(n := getattr(config, name, None), int)), 3)
        return channels, height, width
    settings = getattr(model, "pretrained_cfg", None) or {}
    channels, height, width = settings.get("input_size", (3, 224, 224))
    side = _known_side(model)
    if side is None and model in _tried.sizes:
        return _tried.sizes[model]
    if side is not None:
        height, width = side if isinstance(side, list | tuple) else (side, side)
    channels = getattr(model, "in_chans", channels)  # for hosts without a convolution
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Conv3d | nn.Linear)), None)
    if isinstance(first, nn.Conv2d | nn.Conv3d) and {*first.kernel_size} != {1}:  # or else it embeds whole patches
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
    tables = (p for name, p in model.named_parameters() if "pos" in name and "relative" not in name and p.ndim >= 2)
    rows = next((p.shape[-2] for p in tables), 0)
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

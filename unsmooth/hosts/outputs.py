"""What a host says about images: logits, whichever library the host is from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import image_size, run
from unsmooth.hosts.modes import eval_mode


def logits_of(output: Any) -> Tensor:
    """The logits (images, classes) of what a host gave; of two heads in a tuple, as DeiT has in training, the mean."""
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, dict):
        found = output.get("logits")
    if found is None and isinstance(output, tuple | list) and output:
        heads = [
            head for head in output if isinstance(head, Tensor) and head.shape == getattr(output[0], "shape", None)
        ]
        found = sum(heads) / len(heads) if heads else None
    if found is None:
        found = output
    if not isinstance(found, Tensor) or found.ndim != 2:
        kind = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(output).__name__
        raise UnsmoothError(f"this model gives {kind}, not logits (images, classes): it needs a classification head")
    return found


def forward(model: nn.Module, images: Tensor) -> Tensor:
    """Logits of a batch, which is brought to the model's device and precision. Modes and gradients are the caller's."""
    parameter = next(model.parameters(), None)
    if parameter is not None:
        images = images.to(parameter.device, parameter.dtype, non_blocking=True)
    by_name = getattr(_inside(model), "config", None) is not None  # Hugging Face takes images by name
    return logits_of(run(model, {"pixel_values" if by_name else "image": images}))


def classes_of(model: nn.Module) -> int:
    """How many classes a model tells apart, by asking it about one image."""
    host = _inside(model)
    if getattr(host, "num_classes", None) == 0:
        raise UnsmoothError("this model has no classification head (num_classes=0), so it has no accuracy")
    try:
        with eval_mode(model):
            return forward(model, torch.zeros(1, *image_size(host))).shape[1]
    except UnsmoothError:
        raise
    except Exception as error:  # whatever a host says that wants more than an image
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UnsmoothError(f"this model cannot classify an image: {reason}") from error


def _inside(model: nn.Module) -> nn.Module:
    """The host within torch.compile and DistributedDataParallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def chosen_device(device: str | torch.device | None) -> torch.device:
    """The device that was named, or a GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise UnsmoothError(f"the device {device} cannot be used: {str(error).splitlines()[0]}") from error
    return found

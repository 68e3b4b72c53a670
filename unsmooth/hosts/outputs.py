"""Outputs of a host: logits, for the hosts of every library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, first_line
from unsmooth.hosts.inputs import batch_inputs, input_shape, run
from unsmooth.hosts.modes import device_of, dtype_of, eval_mode


def logits_of(output: Any) -> Tensor:
    """The logits (images, classes) in the output of a host. Two heads in a tuple, as in DeiT, are averaged."""
    logits = getattr(output, "logits", None)
    if logits is None and isinstance(output, dict):
        logits = output.get("logits")
    if logits is None and isinstance(output, tuple | list) and output:
        heads = [
            head for head in output if isinstance(head, Tensor) and head.shape == getattr(output[0], "shape", None)
        ]
        logits = sum(heads) / len(heads) if heads else None
    if logits is None:
        logits = output
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        kind = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(output).__name__
        raise UnsmoothError(
            f"the model returns {kind}, not logits (images, classes). Use a model with a classification head."
        )
    return logits


def forward(model: nn.Module, images: Tensor) -> Tensor:
    """The logits of a batch, which is moved to the model's device and dtype. The mode of the model is not changed."""
    images = images.to(device_of(model), dtype_of(model), non_blocking=True)
    return logits_of(run(model, batch_inputs(_unwrapped(model), images)))


def classes_of(model: nn.Module) -> int:
    """The number of classes of a model, from its output for one image."""
    host = _unwrapped(model)
    if getattr(host, "num_classes", None) == 0:
        raise UnsmoothError(
            "the model has no classification head (num_classes=0), so it has no accuracy. Set num_classes in the spec."
        )
    try:
        with eval_mode(model):
            return forward(model, torch.zeros(1, *input_shape(host))).shape[1]
    except UnsmoothError:
        raise
    except Exception as error:  # a host may fail in any way on an input that it was not made for
        reason = first_line(error)
        raise UnsmoothError(f"the model cannot classify an image: {reason}") from error


def _unwrapped(model: nn.Module) -> nn.Module:
    """The host inside torch.compile and DistributedDataParallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner

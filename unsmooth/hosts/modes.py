"""Modes of a host: evaluation without side effects, mixed precision, device and dtype."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from unsmooth.errors import unknown


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Within the context: eval mode, no gradients. Training flags and the random state are restored afterwards."""
    training = {module: module.training for module in model.modules()}
    random_state = torch.random.get_rng_state()
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        torch.random.set_rng_state(random_state)
        for module, flag in training.items():
            module.training = flag


AMP = {"none": None, "auto": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(amp: str, device: torch.device) -> AbstractContextManager[Any]:
    """Mixed precision by name: none, bfloat16, float16 or auto (bfloat16 on a GPU, none elsewhere)."""
    if amp not in AMP:
        raise unknown("precision", amp, AMP)
    dtype = torch.bfloat16 if amp == "auto" and device.type == "cuda" else AMP[amp]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter; the CPU for a model without parameters."""
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of the first parameter; float32 for a model without parameters."""
    parameter = next(model.parameters(), None)
    return torch.float32 if parameter is None else parameter.dtype

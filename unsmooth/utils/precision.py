"""Single precision whatever the host computes in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """A context in which operations on the device of `x` keep their dtype. The meta device has no autocast."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def full(x: Tensor) -> Tensor:
    """`x` in single precision, or unchanged if it is in double precision."""
    return x if x.dtype == torch.float64 else x.float()


def whole(x: Tensor) -> Tensor:
    """A tensor that is sharded over processes (FSDP) as one; every process must call it."""
    gathered: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return gathered


def local(x: Tensor) -> Tensor:
    """The part of a sharded tensor that this process has; other tensors unchanged."""
    part: Tensor = x.to_local() if hasattr(x, "to_local") else x
    return part

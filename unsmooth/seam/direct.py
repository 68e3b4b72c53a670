"""The short path to a fused attention: the forward of its module, with `F.scaled_dot_product_attention` replaced in it.

A `TorchFunctionMode` is asked about every function of a forward pass. A module whose own code calls
`F.scaled_dot_product_attention` can run without: the same code runs with other globals, in which `F` stands for
`Functions` below. Nothing that others see is changed: the code is shared, and globals are looked up where they were.

The module runs inside a mode first (`unsmooth.seam.patched`). If that reached one fused attention, the next passes take
the short path, as long as the switches of the module that its code reads (such as `fused_attn`) stay the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

SDPA = "scaled_dot_product_attention"
Switches = tuple[tuple[str, Any], ...]


class Running:
    """One forward pass on the short path: its attention patches, and how many attentions it ran."""

    __slots__ = ("count", "patches")

    def __init__(self, patches: Sequence[Any]) -> None:
        self.patches = patches
        self.count = 0


class _Local(threading.local):
    running: Running | None = None


_local = _Local()


def run(
    forward: Callable[..., Any], patches: Sequence[Any], module: nn.Module, args: Any, kwargs: Any
) -> tuple[Any, int]:
    """Run a forward that `with_functions` made. Returns its output and the number of attentions that it ran."""
    outer = _local.running
    _local.running = running = Running(patches)
    try:
        out = forward(module, *args, **kwargs)
    finally:
        _local.running = outer
    return out, running.count


class Functions:
    """Stands for `torch.nn.functional`: the same, with the patches of the running module around fused attention."""

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name)

    @staticmethod
    def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        running = _local.running
        if running is None:
            return F.scaled_dot_product_attention(query, key, value, *args, **kwargs)
        running.count += 1

        def attend(v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query, key, v, *args, **kwargs)

        *inner, last = running.patches
        for patch in inner:
            attend = partial(patch.attended, attend)
        out: Tensor = last.attended(attend, value)
        return out


class Globals(dict[str, Any]):
    """The globals of a function, with some names replaced."""

    def __init__(self, real: dict[str, Any], replaced: dict[str, Any]) -> None:
        super().__init__(replaced)
        self.real = real

    def __missing__(self, name: str) -> Any:
        return self.real[name]


def with_functions(forward: Any) -> Callable[..., Any] | None:
    """A forward that calls `Functions`; None if its own code does not call `F.scaled_dot_product_attention`."""
    if not isinstance(forward, FunctionType) or SDPA not in forward.__code__.co_names:
        return None
    functions = Functions()
    replaced = {name: functions for name in forward.__code__.co_names if forward.__globals__.get(name) is F}
    if not replaced:
        return None
    copied = FunctionType(
        forward.__code__,
        Globals(forward.__globals__, replaced),
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    copied.__kwdefaults__ = forward.__kwdefaults__
    return copied


def switches_of(module: nn.Module, code: CodeType) -> Switches:
    """The switches of a module that a code may read, with their values."""
    own = module.__dict__
    return tuple(
        (name, own[name]) for name in code.co_names if name != "training" and type(own.get(name)) in (bool, str)
    )

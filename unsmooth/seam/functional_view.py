"""A short path for modules whose own forward calls fused attention: no other function takes a detour.

A mode is asked about every function of a module, which takes longer than a small attention does. A function with the
code of the host's forward, but with other globals, calls our attention instead: under the name of
`torch.nn.functional`, or of its attention, it finds a view. All other names are looked up in the host's globals, so
they are what they are for the host. A forward that writes globals has no view: it would write into ours.

Whether a forward reaches its attention by these names is not guessed. The first pass of each kind runs the viewed
function inside the mode, which sees all attention; if all of it came through the view, later passes need no mode.
"""

from __future__ import annotations

import dis
import threading
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.seam.intercept import AttentionInterceptor, sdpa_arguments


class _Running(threading.local):
    """The forward pass of this thread that receives the attention of viewed functions."""

    forward: ViewedForward | None = None


class ViewedForward(AttentionInterceptor):
    """An interceptor that receives fused attention from a viewed function, with or without being a mode."""

    inside_mode = False
    viewed_count = 0  # attentions that came through the view

    def run_viewed(self, function: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run a viewed function, whose attention this interceptor receives."""
        before, _running.forward = _running.forward, self
        try:
            return function(module, *args, **kwargs)
        finally:
            _running.forward = before

    def receive(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        self.viewed_count += 1
        if self.inside_mode:  # which receives it too
            return F.scaled_dot_product_attention(*args, **kwargs)
        return self.on_sdpa(*sdpa_arguments(*args, **kwargs))


_running = _Running()


def _attention(*args: Any, **kwargs: Any) -> Tensor:
    if _running.forward is None:
        return F.scaled_dot_product_attention(*args, **kwargs)
    return _running.forward.receive(args, kwargs)


class _Functional:
    """`torch.nn.functional` with our attention."""

    scaled_dot_product_attention = staticmethod(_attention)

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name)


class _Globals(dict[str, Any]):
    """Globals of a host's module with some names replaced; the others stay live."""

    def __init__(self, host: dict[str, Any], replaced: dict[str, Any]):
        super().__init__(replaced)
        self.host = host

    def __missing__(self, name: str) -> Any:
        return self.host[name]


@cache
def viewed(forward: Any) -> FunctionType | None:
    """The forward function of a host with a view of fused attention.

    None if its globals do not name fused attention, or if it writes globals.
    """
    if not isinstance(forward, FunctionType) or _writes_globals(forward.__code__):
        return None
    replaced: dict[str, Any] = {}
    for name, value in forward.__globals__.items():
        if value is F:
            replaced[name] = _Functional()
        elif value is F.scaled_dot_product_attention:
            replaced[name] = _attention
    if not replaced:
        return None
    scope = _Globals(forward.__globals__, replaced)
    function = FunctionType(forward.__code__, scope, forward.__name__, forward.__defaults__, forward.__closure__)
    function.__kwdefaults__ = forward.__kwdefaults__
    return function


def _writes_globals(code: CodeType) -> bool:
    """Whether a function, or one that it defines, writes a global name or may do so through the dict of them."""
    if {"globals", "exec", "eval"} & {*code.co_names}:
        return True
    if any(step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for step in dis.get_instructions(code)):
        return True
    return any(_writes_globals(inner) for inner in code.co_consts if isinstance(inner, CodeType))

"""Passes the tokens, residual sums and attention maps of a forward pass to callbacks, block by block.

Nothing is stored: the maps of one block are released before those of the next block are computed. On a treated model
maps are the effective ones. Observing changes nothing: same outputs, same training flags, and no hook left, also after
an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from unsmooth.hosts.anatomy import Anatomy, Attention, Block
from unsmooth.hosts.inputs import first_tensor
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.seam.intercept import UNKNOWN, AttentionCall, AttentionInterceptor, MapLayout, residual_side
from unsmooth.seam.observers import observers_are_paused, observers_paused
from unsmooth.seam.patched import patches_of
from unsmooth.surgery.plan import anatomy_of

OnTokens = Callable[[Block, Tensor], None]
OnResidual = Callable[[Block, str, Tensor, Tensor, Tensor], None]
OnAttention = Callable[[Block, Attention, AttentionCall], None]


class _Observer(AttentionInterceptor):
    """Observes attention and residual sums, and finds the block and the attention that they belong to."""

    def __init__(self, on_call: OnAttention | None, on_sum: OnResidual | None):
        super().__init__()
        self.thread = threading.get_ident()
        self.on_call, self.on_sum = on_call, on_sum
        self.running: list[
            list[tuple[Block, Attention] | None]
        ] = []  # the attentions of running cores that are to come
        self.block: Block | None = None
        self.stream: list[Tensor | None] = []  # the residual stream of the running block, and its aliases
        self.sums = 0

    def enter(self, block: Block, x: Tensor | None) -> None:
        self.block, self.stream, self.sums = block, [x], 0

    def saw_attention(self, call: AttentionCall) -> None:
        self.weights = None  # the values of a treated softmax were already applied
        if not self.running:
            return
        expected = self.running[-1]
        current = expected.pop(0) if len(expected) > 1 else expected[0]
        if self.on_call is not None and current is not None:
            with observers_paused():
                self.on_call(*current, call)

    def layout(self) -> MapLayout:
        current = self.running[-1][0] if self.running else None
        return UNKNOWN if current is None else current[1].layout

    def saw_residual(self, x: Tensor, branch: Tensor, out: Tensor) -> None:
        assert self.block is not None
        labels = self.block.residuals
        branch_name = labels[self.sums] if self.sums < len(labels) else "other"
        self.sums += 1
        self.stream = [out]
        if self.on_sum is not None:
            with observers_paused():
                self.on_sum(self.block, branch_name, x, branch, out)

    def on_attention(self, call: AttentionCall) -> Tensor:
        self.saw_attention(call)
        return super().on_attention(call)

    def on_add(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        side = residual_side(self.stream, args) if self.block is not None and not kwargs else None
        if side is None:
            return super().on_add(func, args, kwargs)
        before = args[side]
        if self.on_sum is not None and func in IN_PLACE:
            before = before.clone()
        out = super().on_add(func, args, kwargs)
        self.saw_residual(before, args[1 - side], out)
        return out

    def on_alias(self, source: Tensor, result: Tensor) -> None:
        if any(source is known for known in self.stream):
            self.stream.append(result)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if observers_are_paused():  # arithmetic of a remedy or a callback is not the host's
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


IN_PLACE = {Tensor.add_, Tensor.__iadd__}


@contextmanager
def probe(
    model: nn.Module,
    on_tokens: OnTokens | None = None,
    on_attention: OnAttention | None = None,
    anatomy: Anatomy | None = None,
    on_input: OnTokens | None = None,
    on_residual: OnResidual | None = None,
) -> Iterator[Anatomy]:
    """Observe every forward pass of a model within the context.

    Args:
        model: The model.
        on_tokens: Called with a block and its output.
        on_attention: Called with a block, its attention and the call; `call.map()` computes the map on demand.
        anatomy: Anatomy of the model. Default: read from the model.
        on_input: Called with a block and its input.
        on_residual: Called at each residual sum with the block, the branch (`attn`, `mlp` or `other`), the residual
            stream, what the branch adds, and the sum.
    """
    anatomy = anatomy or anatomy_of(model)
    cores: dict[str, list[tuple[Block, Attention] | None]] = {}  # None: an attention that is not treated
    for block in anatomy.blocks:
        for attention in block.attentions:
            cores.setdefault(attention.core, [None] * attention.siblings)[attention.order] = (block, attention)
    observer = _Observer(on_attention, on_residual)
    observed = patches_of(model)
    handles: list[Any] = []

    def enter_block(block: Block) -> Callable[[Tensor | None], None]:
        def enter(x: Tensor | None) -> None:
            observer.enter(block, x)
            if x is not None and on_input is not None:
                with observers_paused():
                    on_input(block, x)

        return enter

    def leave_block(block: Block) -> Callable[[Tensor | None], None]:
        def leave(tokens: Tensor | None) -> None:
            observer.block = None
            observer.stream = []
            if tokens is not None and on_tokens is not None:
                with observers_paused():
                    on_tokens(block, tokens)

        return leave

    def hook(point: HookPoint, call: Callable[[Tensor | None], None]) -> None:
        """Call a function with the tokens at a hook point, in the thread of the observer."""

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            if threading.get_ident() == observer.thread:
                call(first_tensor((args, kwargs)))

        def after(module: nn.Module, args: Any, output: Any) -> None:
            if threading.get_ident() == observer.thread:
                call(first_tensor(output))

        module = model.get_submodule(point.module)
        if point.side == "input":
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        else:
            handles.append(module.register_forward_hook(after))

    def enter_core(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if threading.get_ident() != observer.thread:
                return
            observer.running.append(list(cores[name]))
            observer.weights = None  # a softmax of another module is not a map of this one

        return hook

    def leave_core(module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == observer.thread:
            observer.running.pop()

    try:
        for block in anatomy.blocks:
            hook(block.point("input"), enter_block(block))
            hook(block.point("output"), leave_block(block))
        if on_attention is None and on_residual is None:
            yield anatomy
            return
        for core in cores:
            module = model.get_submodule(core)
            handles.append(module.register_forward_pre_hook(enter_core(core)))
            handles.append(module.register_forward_hook(leave_core, always_call=True))
        for patches in observed:
            patches.observers.append(observer)
        with observer:
            yield anatomy
    finally:
        for handle in handles:
            handle.remove()
        for patches in observed:
            if observer in patches.observers:
                patches.observers.remove(observer)

"""Streams the tokens and attention maps of a forward pass to callbacks, block by block.

Nothing is kept: a callback sees what passes and takes what it wants, and one block's maps are gone before the
next block's are made. On a treated model the map is the effective one. Observing changes nothing: same outputs,
same training flags, and no hook is left, also after an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from unsmooth.anatomy import Anatomy, Attention, Block
from unsmooth.planning import anatomy_of
from unsmooth.seam import AttentionCall, Seam
from unsmooth.trace import first_tensor
from unsmooth.treatment import is_muted, muted, watchers

OnTokens = Callable[[Block, Tensor], None]
OnAttention = Callable[[Block, Attention, AttentionCall], None]


class _Observer(Seam):
    """Passes attention on, and tells whose it is: the core module that runs."""

    def __init__(self, cores: dict[str, tuple[Block, Attention]], tell: OnAttention):
        super().__init__()
        self.cores, self.tell = cores, tell
        self.running: list[str] = []

    def notice(self, call: AttentionCall) -> None:
        self.weights = None  # a treated softmax has met its values without us
        if self.running:
            with muted():
                self.tell(*self.cores[self.running[-1]], call)

    def on_attention(self, call: AttentionCall) -> Tensor:
        self.notice(call)
        return super().on_attention(call)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if is_muted():  # a treatment's or a callback's own arithmetic is no attention of the host
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


@contextmanager
def probe(
    model: nn.Module,
    on_tokens: OnTokens | None = None,
    on_attention: OnAttention | None = None,
    anatomy: Anatomy | None = None,
) -> Iterator[Anatomy]:
    """Within the context, every forward pass of `model` is observed.

    `on_tokens(block, x)` gets each block's output; `on_attention(block, attention, call)` each attention, whose
    `call.map()` is made only if it is asked for.
    """
    anatomy = anatomy or anatomy_of(model)
    cores = {a.core: (block, a) for block in anatomy.blocks for a in block.attentions}
    observer = _Observer(cores, on_attention or (lambda *_: None))
    handles: list[Any] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            observer.running.append(name)
            observer.weights = None  # a softmax of another module is no map of this one

        return hook

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        observer.running.pop()

    def output_of(block: Block, tell: OnTokens) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            tokens = first_tensor(output)
            if tokens is not None:
                tell(block, tokens)

        return hook

    try:
        if on_tokens is not None:
            for block in anatomy.blocks:
                module = model.get_submodule(block.name)
                handles.append(module.register_forward_hook(output_of(block, on_tokens)))
        if on_attention is None:
            yield anatomy
            return
        for core in cores:
            module = model.get_submodule(core)
            handles.append(module.register_forward_pre_hook(enter(core)))
            handles.append(module.register_forward_hook(leave, always_call=True))
        watchers.append(observer.notice)
        with observer:
            yield anatomy
    finally:
        for handle in handles:
            handle.remove()
        if observer.notice in watchers:
            watchers.remove(observer.notice)

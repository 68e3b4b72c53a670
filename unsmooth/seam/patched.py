"""Patched modules: the forward pass of a treated module runs inside a `PatchedForward`, which applies its patches.

As in `torch.nn.utils.parametrize`, a module that receives its first patch changes its class to a subclass that is made
once per host class. Its class is restored when the last patch is removed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.seam import direct
from unsmooth.seam.intercept import (
    UNKNOWN,
    AttentionCall,
    AttentionInterceptor,
    MapLayout,
    SdpaOptions,
    fused_call,
    residual_side,
    unfold,
)
from unsmooth.seam.products import Product
from unsmooth.seam.stream import PatchedSum, Sums, can_be_stream, plain


@dataclass
class ResidualScale:
    """Factors of one residual sum: skip·x + gain·branch."""

    branch: str
    skip: float = 1.0
    gain: float = 1.0


class ForwardObserver(Protocol):
    """Receives the effective attention and residual sums of patched modules, in the thread that it belongs to."""

    thread: int  # threading.get_ident() of the thread that it observes

    def saw_attention(self, call: AttentionCall) -> None: ...

    def saw_residual(self, x: Tensor, branch: Tensor, out: Tensor) -> None: ...


@dataclass
class ModulePatches:
    """The patches of one module, in the order in which they were attached, and the observers of its forward passes."""

    attention: list[Any] = field(default_factory=list)
    layouts: tuple[MapLayout, ...] = ()  # of each attention of the module, as it was examined
    linears: list[tuple[str, Any]] = field(default_factory=list)  # path of the host's weight, its replacement
    residuals: list[ResidualScale] = field(default_factory=list)
    changes: list[tuple[str, Any]] = field(default_factory=list)  # branch, and the patch of what it adds
    residual_branches: tuple[str, ...] = ()  # the branch of each residual sum of the module
    observers: list[ForwardObserver] = field(default_factory=list)
    switches: direct.Switches | None = None  # with which a pass can take the short path; None: not known yet

    def __bool__(self) -> bool:
        return bool(self.attention or self.linears or self.residuals or self.changes)

    def __getstate__(self) -> dict[str, Any]:
        # An observer belongs to one model, and a copy may become another host: it starts without both.
        return {**self.__dict__, "observers": [], "switches": None}

    def patched_sum(self, name: str) -> PatchedSum:
        """The residual sum of a branch with its patches; None if it has none."""
        changes = [patch for branch, patch in self.changes if branch == name]
        skip, gain = 1.0, 1.0
        for scale in self.residuals:
            if scale.branch == name:
                skip, gain = skip * scale.skip, gain * scale.gain
        if skip == gain == 1.0 and not changes:
            return None
        return lambda x, branch: _weighted_sum(x, branch, changes, skip, gain)


_observers_paused: ContextVar[bool] = ContextVar("unsmooth_observers_paused", default=False)


def observers_are_paused() -> bool:
    return _observers_paused.get()


@contextmanager
def observers_paused() -> Iterator[None]:
    """Within the context, observers of this thread ignore what runs: the arithmetic of a patch or of a callback."""
    token = _observers_paused.set(True)
    try:
        yield
    finally:
        _observers_paused.reset(token)


def _active(observers: list[ForwardObserver]) -> list[ForwardObserver]:
    """The observers of this thread, unless they are paused."""
    if not observers or observers_are_paused():  # the first test suffices where nobody observes
        return []
    return [observer for observer in observers if observer.thread == threading.get_ident()]


class PatchedForward(AttentionInterceptor):
    """Applies the patches of one module while its forward pass runs.

    `check` raises if a patch was not used: a host that ran another path than the one that was traced must not run
    untreated without notice.
    """

    def __init__(self, patches: ModulePatches, module: nn.Module, stream: Tensor | None) -> None:
        super().__init__()
        self.patches = patches
        self.linears = [(attrgetter(path)(module), patch) for path, patch in patches.linears]
        self.follows_products = any(patch.scores_product for patch in patches.attention)
        self.stream = [stream]  # the residual stream, under all its names
        self.source: Tensor | None = None  # the input of the first linear layer: the tokens that an attention reads
        self.residual_count = 0
        self.product_count = 0
        self.attention_count = 0
        self.scores_count = 0
        self.linear_count = 0
        self.fused_count = 0

    @property
    def follows_stream(self) -> bool:
        return bool(self.patches.residuals or self.patches.changes)

    def layout(self) -> MapLayout:
        layouts = self.patches.layouts
        return layouts[min(self.attention_count, len(layouts) - 1)] if layouts else UNKNOWN

    def next_patches(self) -> list[Any]:
        """The patches of the next attention; where a module runs several, each has its own."""
        if len(self.patches.layouts) < 2:
            return self.patches.attention
        return [patch for patch in self.patches.attention if patch.attention_order == self.attention_count]

    def on_sdpa(self, q: Tensor, k: Tensor, v: Tensor, options: SdpaOptions) -> Tensor:
        heads = self.layout().heads if q.ndim == 3 else 0
        if heads:
            mask = options["attn_mask"]
            if mask is not None and mask.ndim == 3:
                options = {**options, "attn_mask": unfold(mask, heads) if len(mask) > 1 else mask[None]}
            q, k, v = unfold(q, heads), unfold(k, heads), unfold(v, heads)
        patches = self.next_patches()
        for patch in patches:
            options = patch.masked(q, k, options)
        call = fused_call(q, k, v, options)
        self.scores_count += 1
        self.fused_count += 1
        for patch in patches:
            call = patch.rescore(call, options)
        out = self.on_attention(call)
        return out.flatten(0, 1) if heads else out

    def on_attention(self, call: AttentionCall) -> Tensor:
        patches = self.next_patches()
        self.attention_count += 1
        self.product_count = 0
        call = replace(call, x=self.source)
        for patch in patches:
            call = patch.change(call)
        observers = _active(self.patches.observers)
        if not observers:
            return call.attend(call.v)
        with observers_paused():
            out = call.attend(call.v)
        for observer in observers:
            observer.saw_attention(call)
        return out

    def on_scores(self, product: Product) -> Tensor:
        self.product_count += 1
        for patch in self.next_patches():
            if patch.scores_product == self.product_count:
                self.scores_count += 1
                heads = self.layout().heads if product.left.ndim == 3 else 0
                q, k = product.left, product.right.transpose(-2, -1)
                if not heads:
                    return product.result(patch.explicit_scores(q, k))
                return product.result(patch.explicit_scores(unfold(q, heads), unfold(k, heads)).flatten(0, 1))
        return product.run()

    def on_softmax(self, weights: Tensor, logits: Tensor) -> Tensor:
        heads = self.layout().heads if weights.ndim == 3 else 0
        for patch in self.next_patches():
            given = (unfold(weights, heads), unfold(logits, heads)) if heads else (weights, logits)
            changed = patch.reweight(*given)
            if changed is not given[0]:
                self.scores_count += 1
                weights = changed.flatten(0, 1) if heads else changed
        return weights

    def on_multi_head(self, tokens_first: Tensor) -> None:
        self.source = tokens_first.transpose(0, 1)

    def on_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.source is None:
            self.source = x
        for host_weight, patch in self.linears:
            if weight is host_weight:
                self.linear_count += 1
                out: Tensor = patch.linear(x, weight, bias)
                return out
        return F.linear(x, weight, bias)

    def on_add(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        # A sum with options of its own (alpha) cannot be scaled here; `check` reports it.
        side = residual_side(self.stream, args) if self.follows_stream and not kwargs else None
        if side is None:
            return func(*args, **kwargs)
        branches = self.patches.residual_branches
        name = branches[self.residual_count] if self.residual_count < len(branches) else "other"
        self.residual_count += 1
        patched = self.patches.patched_sum(name)
        if patched is None:
            out = func(*args, **kwargs)
        else:
            observers = _active(self.patches.observers)
            if not observers:
                out = patched(args[side], args[1 - side])[1]
            else:
                with observers_paused():
                    added, out = patched(args[side], args[1 - side])
                for observer in observers:
                    observer.saw_residual(args[side], added, out)
        self.stream = [out]
        return out

    def on_alias(self, source: Tensor, result: Tensor) -> None:
        if self.follows_stream and any(source is known for known in self.stream):
            self.stream.append(result)

    def check(self, where: str) -> None:
        """Raise if the forward pass did not reach every patch."""
        patches = self.patches
        reached = {
            "attention": self.attention_count > max((patch.attention_order for patch in patches.attention), default=-1),
            "attention scores": self.scores_count > 0 or not any(patch.rescores for patch in patches.attention),
            "linear layers": self.linear_count >= len(self.linears),
            "residual sums": not self.follows_stream or self.residual_count >= len(patches.residual_branches),
        }
        missed = [site for site, ok in reached.items() if not ok]
        if missed:
            raise not_reached(where, missed)


def not_reached(where: str, missed: list[str]) -> RuntimeError:
    return RuntimeError(
        f"unsmooth: this forward pass of {where} did not reach the {' and '.join(missed)} that a remedy acts "
        "on, so the remedy would be silently off. If the host now uses another attention implementation, "
        "remove the remedy and apply it again; with torch.export, use strict=False."
    )


def _weighted_sum(x: Tensor, branch: Tensor, changes: list[Any], skip: float, gain: float) -> tuple[Tensor, Tensor]:
    """What the branch adds, after its patches, and skip·x + gain·branch."""
    for patch in changes:
        branch = patch(x, branch)
    branch = branch if gain == 1.0 else gain * branch
    return branch, branch if skip == 0.0 else branch.add(x, alpha=skip)


def not_scriptable(self: Any) -> Any:
    """Called by torch.jit.script, which compiles source code and so does not see what a patch does to it."""
    raise UnsmoothError("torch.jit.script cannot compile a treated model. Use torch.export or torch.compile.")


def takes_short_path(patches: ModulePatches, module: nn.Module) -> bool:
    """Whether the next forward pass needs no mode: what is attached, and the switches of the module, allow it."""
    if patches.switches is None or patches.observers or patches.linears or patches.residuals or patches.changes:
        return False
    for patch in patches.attention:
        if not patch.direct:
            return False
    own = module.__dict__
    return all(own.get(name) == value for name, value in patches.switches)


def takes_stream(patches: ModulePatches) -> bool:
    """Whether the patches act on residual sums alone, and nobody observes."""
    return not (patches.attention or patches.linears or patches.observers) and bool(patches.residual_branches)


@cache
def patched_class(host: type[nn.Module]) -> type[nn.Module]:
    """The subclass of a host's class whose forward runs inside a `PatchedForward`."""

    known = host.forward
    short = direct.with_functions(known)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        patches: ModulePatches = self._unsmooth_patches
        compiling = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
        if short is not None and not compiling and host.forward is known and takes_short_path(patches, self):
            out, count = direct.run(short, patches.attention, self, args, kwargs)
            if not count:
                raise not_reached(host.__name__, ["attention"])
            return out
        if args and not compiling and can_be_stream(args[0]) and takes_stream(patches):
            sums = Sums([patches.patched_sum(branch) for branch in patches.residual_branches])
            out = host.forward(self, sums.start(args[0]), *args[1:], **kwargs)
            if sums.coming:
                raise not_reached(host.__name__, ["residual sums"])
            return plain(out)
        stream = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        patched = PatchedForward(patches, self, stream)
        with patched:
            out = host.forward(self, *args, **kwargs)
        patched.check(host.__name__)
        once = patched.fused_count == patched.attention_count == 1 and not any(
            layout.heads for layout in patches.layouts
        )
        if once and short is not None and not compiling:
            patches.switches = direct.switches_of(self, known.__code__)
        return out

    def reduce(self: Any, protocol: Any) -> Any:  # copies and pickles look the class up by its host
        return _new_instance, (host,), self.__dict__

    body = {
        "forward": forward, "__reduce_ex__": reduce, "__prepare_scriptable__": not_scriptable,
        "__module__": host.__module__, "_unsmooth_host": host,
    }  # fmt: skip
    return type(host.__name__, (host,), body)


def _new_instance(host: Any) -> nn.Module:
    cls = patched_class(host)
    return cls.__new__(cls)


def module_patches(module: nn.Module) -> ModulePatches:
    """The patches of a module. A module without any gets an empty `ModulePatches` and the patched class."""
    if not hasattr(type(module), "_unsmooth_host"):
        host: Any = type(module)
        module.__class__ = patched_class(host)  # first: a class that cannot be changed raises here
        module.__dict__["_unsmooth_patches"] = ModulePatches()
    patches: ModulePatches = module.__dict__["_unsmooth_patches"]
    return patches


def patches_of(model: nn.Module) -> list[ModulePatches]:
    """The patches of every patched module of a model."""
    patches = (module.__dict__.get("_unsmooth_patches") for module in model.modules())
    return [each for each in patches if each is not None]


def is_outermost(module: nn.Module) -> bool:
    """Whether the class of a module can be restored: it is not patched, or nothing changed its class since."""
    return not hasattr(type(module), "_unsmooth_host") or "_unsmooth_host" in vars(type(module))


def unpatch(module: nn.Module) -> None:
    """Restore the class of a module that has no patches any more."""
    if "_unsmooth_patches" in module.__dict__ and not module.__dict__["_unsmooth_patches"]:
        del module.__dict__["_unsmooth_patches"]
        module.__class__ = module._unsmooth_host  # type: ignore[assignment]

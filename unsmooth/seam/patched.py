"""Patched modules: the forward pass of a treated module runs inside a `PatchedForward`, which applies its patches.

As in `torch.nn.utils.parametrize`, a module that receives its first patch changes its class to a subclass that is made
once per host class. Its class is restored when the last patch is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.seam.functional_view import ViewedForward, viewed
from unsmooth.seam.intercept import (
    ATTENTION,
    LINEAR,
    RESIDUAL,
    UNKNOWN,
    AttentionCall,
    MapLayout,
    SdpaOptions,
    fused_call,
    residual_side,
    unfold,
)
from unsmooth.seam.observers import ForwardObserver, active, observers_paused
from unsmooth.seam.products import Product
from unsmooth.seam.residual_sums import ResidualScale, ResidualStream, ResidualSums, patched_sums

PREFIX = "unsmooth_"  # of the names of the modules that remedies add to a host
# The functions that are events, by whether attention, linear layers and residual sums are patched.
WANTED = {
    (attention, linear, residual): frozenset[Any](
        [*(ATTENTION if attention else ()), *(LINEAR if linear else ()), *(RESIDUAL if residual else ())]
    )
    for attention, linear, residual in product((False, True), repeat=3)
}


@dataclass
class ModulePatches:
    """The patches of one module, in the order in which they were attached, and the observers of its forward passes."""

    attention: list[Any] = field(default_factory=list)
    layouts: tuple[MapLayout, ...] = ()  # of each attention of the module, as it was examined
    linears: list[tuple[str, Any]] = field(default_factory=list)  # path of the host's weight, its replacement
    residuals: list[ResidualScale] = field(default_factory=list)
    changes: list[tuple[str, Any]] = field(default_factory=list)  # branch, and the patch of what it adds
    residual_branches: tuple[str, ...] = ()  # the branch of each residual sum of the module
    stream_on_left: bool = False  # whether each of them is `x + branch`, where x is the stream itself
    observers: list[ForwardObserver] = field(default_factory=list)
    memo: dict[Any, Any] = field(default_factory=dict)  # what was found out; `module_patches` forgets it

    def __bool__(self) -> bool:
        return bool(self.attention or self.linears or self.residuals or self.changes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "observers": [], "memo": {}}  # an observer belongs to one model: copies start without

    def sums(self) -> ResidualSums:
        """The residual sums of one forward pass."""
        sums = self.memo.get("sums")
        if sums is None:
            self.memo["sums"] = sums = patched_sums(self.residual_branches, self.residuals, self.changes)
        return ResidualSums(sums, self.observers)


class PatchedForward(ViewedForward):
    """Applies the patches of one module while its forward pass runs.

    `check` raises if a patch was not used: a host that ran another path than the one that was traced must not run
    untreated without notice.
    """

    linears: Sequence[tuple[Tensor, Any]] = ()
    source: Tensor | None = None  # the input of the first linear layer: the tokens that an attention reads
    sums: ResidualSums | None = None
    stream: Sequence[Tensor | None] = ()  # the residual stream, under all its names
    product_count = attention_count = scores_count = linear_count = 0

    def __init__(self, patches: ModulePatches) -> None:
        self.patches = patches

    @classmethod
    def as_mode(cls, patches: ModulePatches, module: nn.Module, stream: Tensor | None) -> PatchedForward:
        """An interceptor that is asked about all functions which the patches of the module change."""
        patched = cls(patches)
        patched.linears = [(attrgetter(path)(module), patch) for path, patch in patches.linears]
        patched.stream = (stream,)
        attention, linear, residual = bool(patches.attention), bool(patches.linears), False
        for patch in patches.attention:
            linear = linear or patch.reads_tokens
            patched.follows_products = patched.follows_products or patch.scores_product > 0
        if patches.residuals or patches.changes:
            patched.sums, residual = patches.sums(), True
        patched.wanted = WANTED[attention, linear, residual]
        return patched

    def layout(self) -> MapLayout:
        layouts = self.patches.layouts
        return layouts[min(self.attention_count, len(layouts) - 1)] if layouts else UNKNOWN

    def next_patches(self) -> list[Any]:
        """The patches of the next attention; where a module runs several, each has its own."""
        if len(self.patches.layouts) < 2:
            return self.patches.attention
        return [patch for patch in self.patches.attention if patch.attention_order == self.attention_count]

    def is_usual(self, patches: list[Any], q: Tensor, v: Tensor, options: SdpaOptions) -> bool:
        """Whether a single patch changes only the output, and no observer needs the map or the scores."""
        return (
            len(patches) == 1
            and patches[0].transforms
            and not self.patches.observers
            and q.ndim == v.ndim == 4
            and (q.shape[:2] == v.shape[:2] or options["enable_gqa"])
        )

    def on_sdpa(self, q: Tensor, k: Tensor, v: Tensor, options: SdpaOptions) -> Tensor:
        patches = self.next_patches()
        if self.is_usual(patches, q, v, options):
            self.attention_count += 1
            self.scores_count += 1
            transformed: Tensor = patches[0].transform(
                lambda x: F.scaled_dot_product_attention(q, k, x, **options), v, self.source
            )
            return transformed
        heads = self.layout().heads if q.ndim == 3 else 0
        if heads:
            mask = options["attn_mask"]
            if mask is not None and mask.ndim == 3:
                options = {**options, "attn_mask": unfold(mask, heads) if len(mask) > 1 else mask[None]}
            q, k, v = unfold(q, heads), unfold(k, heads), unfold(v, heads)
        for patch in patches:
            options = patch.masked(q, k, options)
        call = fused_call(q, k, v, options)
        self.scores_count += 1
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
        observers = active(self.patches.observers)
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
        side = residual_side(self.stream, args) if self.sums is not None and not kwargs else None
        if side is None:
            return func(*args, **kwargs)
        assert self.sums is not None
        out = self.sums.add(args[side], args[1 - side], func, *args)
        self.stream = (out,)
        return out

    def on_alias(self, source: Tensor, result: Tensor) -> None:
        if self.sums is not None and any(source is known for known in self.stream):
            self.stream = (*self.stream, result)

    def check(self, where: str) -> None:
        """Raise if the forward pass did not reach every patch."""
        attention = scores = False
        for patch in self.patches.attention:
            attention = attention or self.attention_count <= patch.attention_order
            scores = scores or (patch.rescores and not self.scores_count)
        residual = self.sums is not None and not self.sums.complete
        linear = self.linear_count < len(self.linears)
        if attention or scores or linear or residual:
            sites = {"attention": attention, "attention scores": scores, "linear layers": linear}
            raise not_reached(where, *(site for site, missed in sites.items() if missed),
                              *(["residual sums"] if residual else []))  # fmt: skip


def not_reached(where: str, *sites: str) -> RuntimeError:
    """The error of a forward pass that ran another path than the one that was traced."""
    return RuntimeError(
        f"unsmooth: this forward pass of {where} did not reach the {' and '.join(sites)} that a remedy acts "
        "on, so the remedy would be silently off. If the host now uses another attention implementation, "
        "remove the remedy and apply it again; with torch.export, use strict=False."
    )


def is_eager() -> bool:
    """Whether short paths can be taken: nothing records the functions of this forward pass."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and torch._C._len_torch_function_stack() == 0
    )


def _with_stream(forward: Any, module: nn.Module, patches: ModulePatches, x: Tensor, args: Any, kwargs: Any) -> Any:
    """A forward pass in which only residual sums are patched, with the tokens x as a `ResidualStream`."""
    sums = patches.sums()
    stream = ResidualStream.of(x, sums)
    args = [stream if each is x else each for each in args]
    if kwargs:
        kwargs = {name: stream if each is x else each for name, each in kwargs.items()}
    out = forward(module, *args, **kwargs)
    if not sums.complete:
        raise not_reached(type(module).__name__, "residual sums")
    return out


def _with_view(forward: Any, module: nn.Module, patches: ModulePatches, args: Any, kwargs: Any) -> Any:
    """A forward pass in which only attention is patched, by a view of it if that sees all of it."""
    # A forward may take another path in training, or by the value of a flag.
    kind = (forward, module.training, *[_flag(x) for x in args], *[(name, _flag(x)) for name, x in kwargs.items()])
    by_view = patches.memo.get(kind)
    if by_view:
        patched = PatchedForward(patches)
        out = patched.run_viewed(viewed(forward), module, args, kwargs)
        if not patched.attention_count:
            patches.memo.pop(kind, None)  # the host takes another path now, which is an error once
    else:
        patched = PatchedForward.as_mode(patches, module, None)
        function = viewed(forward) if by_view is None else None
        with patched:
            if function is None:
                out = forward(module, *args, **kwargs)
            else:
                patched.inside_mode = True
                out = patched.run_viewed(function, module, args, kwargs)
        reads_tokens = any(patch.reads_tokens for patch in patches.attention)
        complete = function is not None and patched.viewed_count == patched.attention_count
        patches.memo[kind] = complete and not reads_tokens
    patched.check(type(module).__name__)
    return out


def _flag(argument: Any) -> Any:
    """An argument as part of the kind of a call: its value if it can decide about the path, or else its type."""
    return argument if isinstance(argument, bool | int | str) else type(argument)


def not_scriptable(self: Any) -> Any:
    """Called by torch.jit.script, which compiles source code and so does not see what a patch does to it."""
    raise UnsmoothError("torch.jit.script cannot compile a treated model. Use torch.export or torch.compile.")


@cache
def patched_class(host: type[nn.Module]) -> type[nn.Module]:
    """The subclass of a host's class whose forward runs inside a `PatchedForward`."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        patches: ModulePatches = self._unsmooth_patches
        residual = patches.residuals or patches.changes
        x = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None) if residual else None
        if not patches.linears and is_eager():
            if not residual:
                return _with_view(host.forward, self, patches, args, kwargs)
            if not patches.attention and patches.stream_on_left and type(x) is Tensor:
                return _with_stream(host.forward, self, patches, x, args, kwargs)
        patched = PatchedForward.as_mode(patches, self, x)
        with patched:
            out = host.forward(self, *args, **kwargs)
        patched.check(host.__name__)
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
    """The patches of a module, to be changed. A module without any gets empty ones and the patched class."""
    if not hasattr(type(module), "_unsmooth_host"):
        host: Any = type(module)
        module.__class__ = patched_class(host)  # first: a class that cannot be changed raises here
        module.__dict__["_unsmooth_patches"] = ModulePatches()
    patches: ModulePatches = module.__dict__["_unsmooth_patches"]
    patches.memo.clear()
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

"""What a treated module does: its forward pass runs inside a `PatchedForward`, which applies the parts that hang on it.

As `torch.nn.utils.parametrize` does, a treated module changes its class to a subclass of its own, made once for
each host class, and changes back when nothing hangs on it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth.seam.intercept import AttentionCall, AttentionInterceptor, fused_call, residual_side


@dataclass
class ResidualScale:
    """What happens to one residual sum: skip·x + gain·branch."""

    branch: str
    skip: float = 1.0
    gain: float = 1.0


@dataclass
class ModulePatches:
    """What hangs on one treated module: parts in the order of their entry."""

    attention: list[Any] = field(default_factory=list)
    linears: list[tuple[str, Any]] = field(default_factory=list)  # path of the host's weight, its stand-in
    residuals: list[ResidualScale] = field(default_factory=list)
    order: tuple[str, ...] = ()  # which branch each residual sum of the module belongs to

    def __bool__(self) -> bool:
        return bool(self.attention or self.linears or self.residuals)


class ForwardObserver(Protocol):
    """Who looks at treated modules: it sees the effective attention and residual sums, not our own arithmetic."""

    def attention(self, call: AttentionCall) -> None: ...

    def join(self, x: Tensor, branch: Tensor, out: Tensor) -> None: ...


observers: list[ForwardObserver] = []  # a probe adds itself
_paused = 0


def observers_are_paused() -> bool:
    return _paused > 0


@contextmanager
def observers_paused() -> Iterator[None]:
    global _paused
    _paused += 1
    try:
        yield
    finally:
        _paused -= 1


class PatchedForward(AttentionInterceptor):
    """Applies the parts that hang on one module while its forward pass runs.

    At the end it checks that each part was met: a host that took another path than the one it was
    examined on raises, instead of running untreated.
    """

    def __init__(self, module_patches: ModulePatches, module: nn.Module, stream: Tensor | None) -> None:
        super().__init__()
        self.attention = module_patches.attention
        self.linears = [(attrgetter(path)(module), part) for path, part in module_patches.linears]
        self.residuals, self.order = module_patches.residuals, module_patches.order
        self.stream = [stream]
        self.joined = 0
        self.products = 0
        self.attended = 0
        self.rescored = 0
        self.mapped = 0

    def on_sdpa(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
        call = fused_call(q, k, v, options)
        self.rescored += 1
        for part in self.attention:
            call = part.rescore(call, options)
        return self.on_attention(call)

    def on_attention(self, call: AttentionCall) -> Tensor:
        self.attended += 1
        for part in self.attention:
            call = call.then(part, part.matrix)
        if not observers or observers_are_paused():
            return call.attend(call.v)
        with observers_paused():
            out = call.attend(call.v)
        for watcher in observers:
            watcher.attention(call)
        return out

    def on_scores(self, func: Callable[..., Tensor], q: Tensor, k: Tensor) -> Tensor:
        self.products += 1
        for part in self.attention:
            if part.scores_product == self.products:
                self.rescored += 1
                return part.explicit_scores(q, k.transpose(-2, -1))
        return func(q, k)

    def on_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        for host, part in self.linears:
            if weight is host:
                self.mapped += 1
                return part(x)
        return F.linear(x, weight, bias)

    def on_add(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        # A sum with options of its own (alpha) is not ours to change: it stays, and `check` tells.
        side = residual_side(self.stream, args) if self.residuals and not kwargs else None
        if side is None:
            return func(*args, **kwargs)
        here = self.order[self.joined] if self.joined < len(self.order) else "other"
        self.joined += 1
        skip, gain = 1.0, 1.0
        for join in self.residuals:
            if join.branch == here:
                skip, gain = skip * join.skip, gain * join.gain
        if skip == gain == 1.0:
            out = func(*args, **kwargs)
        elif not observers or observers_are_paused():
            out = _weighted_sum(args[side], args[1 - side], skip, gain)[1]
        else:
            with observers_paused():
                branch, out = _weighted_sum(args[side], args[1 - side], skip, gain)
            for watcher in observers:
                watcher.join(args[side], branch, out)
        self.stream = [out]
        return out

    def on_alias(self, source: Tensor, result: Tensor) -> None:
        if self.residuals and any(source is known for known in self.stream):
            self.stream.append(result)

    def check(self, where: str) -> None:
        """Raise where a part was not met: a remedy must never be silently off."""
        met = {
            "attention": not self.attention or self.attended > 0,
            "attention scores": self.rescored > 0 or not any(part.rescores for part in self.attention),
            "linear layers": self.mapped >= len(self.linears),
            "residual sums": not self.residuals or self.joined >= len(self.order),
        }
        missed = [what for what, ok in met.items() if not ok]
        if missed:
            raise RuntimeError(
                f"unsmooth: this forward pass of {where} went past the {' and '.join(missed)} that its remedy acts "
                "on, so the remedy would be silently off. If the host was switched to another kind of attention, "
                "remove the remedy and apply it again; with torch.export, use strict=False."
            )


def _weighted_sum(x: Tensor, branch: Tensor, skip: float, gain: float) -> tuple[Tensor, Tensor]:
    """What the branch adds, and skip·x + gain·branch."""
    branch = branch if gain == 1.0 else gain * branch
    return branch, branch if skip == 0.0 else branch.add(x, alpha=skip)


_classes: dict[type, type] = {}


def patched_class(host: type[nn.Module]) -> type[nn.Module]:
    """The subclass of a host's class whose forward enters the seam: one for each class, as parametrize does."""
    if host not in _classes:

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            stream = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
            treatment = PatchedForward(self._unsmooth_patches, self, stream)
            with treatment:
                out = host.forward(self, *args, **kwargs)
            treatment.check(host.__name__)
            return out

        def reduce(self: Any, protocol: Any) -> Any:  # copies and pickles find the class by its host
            return _revive, (host,), self.__dict__

        body = {"forward": forward, "__reduce_ex__": reduce, "__module__": host.__module__, "_unsmooth_host": host}
        _classes[host] = type(host.__name__, (host,), body)
    return _classes[host]


def _revive(host: type[nn.Module]) -> nn.Module:
    cls = patched_class(host)
    return cls.__new__(cls)


def module_patches(module: nn.Module) -> ModulePatches:
    """The module_patches of a module, made and its class changed where it has none yet."""
    if not hasattr(type(module), "_unsmooth_host"):
        module.__class__ = patched_class(type(module))  # first: a class that cannot be changed raises here
        module.__dict__["_unsmooth_patches"] = ModulePatches()
    found: ModulePatches = module.__dict__["_unsmooth_patches"]
    return found


def unpatch(module: nn.Module) -> None:
    """Give a module its own class back once nothing hangs on it."""
    if "_unsmooth_patches" in module.__dict__ and not module.__dict__["_unsmooth_patches"]:
        del module.__dict__["_unsmooth_patches"]
        module.__class__ = module._unsmooth_host  # type: ignore[assignment]

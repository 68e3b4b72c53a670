"""Traces one forward pass of a host: which module ran when, and which events of the seam happened inside it.

A trace holds names and sizes only. Training flags are restored and hooks are removed, also after an exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import Example, first_tensor, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.seam.intercept import SOFTMAX, AttentionCall, AttentionInterceptor, residual_side
from unsmooth.seam.patched import PREFIX
from unsmooth.seam.products import Product

Shape = tuple[int, ...]
CONVOLUTIONS = {torch.conv2d, torch.nn.functional.conv2d}
MULTIPLY = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.mul_, Tensor.__imul__}
# Functions whose result holds the same numbers in another order of axes, so that a scale stays known.
VIEWS = {
    torch.transpose, Tensor.transpose, torch.permute, Tensor.permute, torch.swapaxes, Tensor.swapaxes,
    Tensor.mT.__get__, Tensor.t,  # type: ignore[attr-defined]
    torch.squeeze, Tensor.squeeze, torch.unsqueeze, Tensor.unsqueeze, Tensor.expand,
}  # fmt: skip
DIVIDE = {torch.div, Tensor.div, Tensor.__truediv__, Tensor.div_, Tensor.__itruediv__}


@dataclass
class ModuleCall:
    """One call of a module: start and end (counts of events), and the shapes of its first input and output tensor."""

    name: str
    module: nn.Module
    start: int
    end: int = -1
    input: Shape | None = None
    output: Shape | None = None
    sums: list[int] = field(default_factory=list)  # its input plus a tensor, that sum plus a tensor, and so on
    stream_on_left: bool = True  # whether each of them is `x + branch`, where x is its input or the sum before


@dataclass
class AttentionEvent:
    """One attention: its sizes, and how its scores are scaled."""

    at: int
    core: str  # the innermost module that ran it
    order: int  # among the attentions of this call of the core, from 0
    via: str
    queries: Shape
    values: Shape
    keys: int
    tokens_last: bool  # whether the values are contiguous over tokens, not channels: attention over channels
    side: str = "left"  # the factor of the product with the values that is the map: left or right
    product: int = 0  # the product in the core that computes the scores, counted from 1; 0: a fused kernel
    scale_q: float = 1.0
    scale_k: float = 1.0
    scale_after: float = 1.0
    nonstandard_scores: str = ""  # why the scores are not a plain scaled dot product
    mixed: bool = False  # whether a linear layer or a convolution mixes the maps of its heads


@dataclass
class LinearEvent:
    """One linear layer: the modules around it, its weight and its sizes."""

    at: int
    stack: tuple[str, ...]
    weight: str  # the name of the parameter; "" if the weight is computed
    inputs: int
    outputs: int
    rows: int  # tokens of the batch


@dataclass
class Trace:
    """The events of one forward pass. `at` counts all of them."""

    calls: list[ModuleCall] = field(default_factory=list)
    attentions: list[AttentionEvent] = field(default_factory=list)
    linears: list[LinearEvent] = field(default_factory=list)
    softmaxes: int = 0
    exits: dict[str, tuple[str, str]] = field(default_factory=dict)  # of list blocks: where their tokens come out
    holders: dict[str, str] = field(default_factory=dict)  # of list blocks: the module that runs their members


def _shape(value: Any) -> Shape | None:
    tensor = first_tensor(value)
    return None if tensor is None else tuple(tensor.shape)


@dataclass
class _Product:
    """A matrix product that may be the scores of the next attention."""

    at: int
    scores: Tensor
    size: Shape  # rows and columns
    queries: Shape
    scale_q: float
    scale_k: float


@dataclass
class _Running:
    """A call that has not ended, and its residual stream, under all its names."""

    call: ModuleCall
    stream: list[Tensor | None]


class _Recorder(AttentionInterceptor):
    follows_products = True

    def __init__(self, model: nn.Module, trace: Trace, lists: Collection[str]):
        super().__init__()
        self.trace, self.lists, self.clock, self.stack = trace, lists, 0, [""]
        self.list_block: _Running | None = None  # the block that is a list of modules and not a module, if one runs
        self.open: list[_Running] = []
        self.parameters = {id(p): name for name, p in model.named_parameters(remove_duplicate=False)}
        self.reset_scores()

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.trace.softmaxes += func in SOFTMAX  # over any axis
        return super().__torch_function__(func, types, args, kwargs)

    def reset_scores(self) -> None:
        # From one attention to the next: tensors times a scalar, and products of two tensors.
        self.scaled: list[tuple[Tensor, float]] = []
        self.products: list[_Product] = []
        self.maps: list[Tensor] = []  # the latest softmax, and tensors derived from it
        self.side = "left"
        self.scale_after = 1.0
        self.nonstandard = ""
        self.mixed = False

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def running(self) -> list[_Running]:
        return self.open if self.list_block is None else [*self.open, self.list_block]

    def enter(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            x = first_tensor((args, kwargs))
            self.passes(name, "input", x)
            if (parent := name.rpartition(".")[0]) in self.lists:
                self.enter_list(parent, x)
            call = ModuleCall(name, module, self.tick(), input=_shape(x))
            self.trace.calls.append(call)
            self.open.append(_Running(call, [x]))
            self.stack.append(name)

        return hook

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self.open.pop().call
        call.end, call.output = self.tick(), _shape(output)
        self.passes(call.name, "output", first_tensor(output))
        self.stack.pop()
        if self.list_block is not None and self.trace.holders[self.list_block.call.name] == call.name:
            self.leave_list()

    def enter_list(self, name: str, x: Tensor | None) -> None:
        """A member of a list block runs: the block starts, unless it runs already."""
        if self.list_block is not None and self.list_block.call.name == name:
            return
        self.leave_list()
        call = ModuleCall(name, nn.Identity(), self.tick(), input=_shape(x))
        self.list_block = _Running(call, [x])
        self.trace.calls.append(call)
        self.trace.holders[name] = self.stack[-1]

    def leave_list(self) -> None:
        if self.list_block is not None:
            self.list_block.call.end = self.tick()
            self.list_block = None

    def passes(self, name: str, side: str, x: Tensor | None) -> None:
        """The first module after the last sum of a list block that reads or returns its tokens is its exit."""
        if self.list_block is not None and x is not None and any(x is known for known in self.list_block.stream):
            self.trace.exits.setdefault(self.list_block.call.name, (name, side))

    def on_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        name = self.parameters.get(id(weight), "")
        rows = x.numel() // weight.shape[1]
        event = LinearEvent(self.tick(), tuple(self.stack), name, weight.shape[1], weight.shape[0], rows)
        self.trace.linears.append(event)
        out = super().on_linear(x, weight, bias)
        self.mixed |= self.follow_map([x], out)
        return out

    def on_scores(self, product: Product) -> Tensor:
        out = super().on_scores(product)
        scales = [math.prod(factor for tensor, factor in self.scaled if tensor is x) for x in product.operands]
        standard = product.standard(out)
        size = tuple(standard.shape[-2:])
        if any(x is earlier.scores for x in product.operands for earlier in self.products):
            size = ()  # a mix of the scores of heads
        self.products.append(_Product(self.tick(), out, size, tuple(product.left.shape), *scales))
        self.mixed |= self.follow_map(product.operands, out)
        return out

    def on_softmax(self, weights: Tensor, logits: Tensor) -> Tensor:
        self.maps.append(weights)
        return weights

    def with_map(self, product: Product, weights: Tensor) -> Product | None:
        """Here the tensors are followed, so that a product of the size of a map is not taken for one."""
        for side in ("left", "right"):
            factor = product.operands[side == "right"]
            if factor.ndim < 2 or not any(factor is known for known in self.maps):
                continue
            standard = product if side == "left" else product.transposed()
            if standard.left.shape[-2:] == weights.shape[-2:] and _sums_over_keys(standard.left):
                self.side = side
                return standard
        return None

    def follow_map(self, args: Collection[Any], out: Any) -> bool:
        """Dropout, a mix of heads or a blend of two maps keeps the size: the result still counts as the map."""
        if isinstance(out, Tensor) and any(a is m and a.numel() == out.numel() for a in args for m in self.maps):
            self.maps.append(out)
            return True
        return False

    def on_add(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        out = super().on_add(func, args, kwargs)
        at = self.tick()
        for running in self.running():
            if residual_side(running.stream, args) is not None:
                running.call.sums.append(at)
                running.call.stream_on_left &= func is Tensor.add and args[0] is running.stream[0] and not kwargs
                running.stream = [out]
                self.trace.exits.pop(running.call.name, None)  # a list block continues
        self.follow_map(args, out)
        return out

    def on_alias(self, source: Tensor, result: Tensor) -> None:
        self.scaled += [(result, factor) for tensor, factor in self.scaled if tensor is source]
        for running in self.running():
            if any(source is known for known in running.stream):
                running.stream.append(result)

    def on_other(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = super().on_other(func, args, kwargs)
        self.mixed |= self.follow_map(args, out) and func in CONVOLUTIONS
        if func in VIEWS:
            self.scaled += [(out, factor) for tensor, factor in self.scaled if tensor is args[0]]
        if func in MULTIPLY or func in DIVIDE:
            a, b = args[0], args[1]
            tensor, factor = (b, a) if isinstance(a, int | float) else (a, b)
            after_product = bool(self.products) and tensor is self.products[-1].scores
            if isinstance(factor, int | float):
                factor = 1 / factor if func in DIVIDE else factor
                if after_product:
                    self.scale_after *= factor
                else:
                    self.scaled.append((out, factor))
            elif after_product:
                self.nonstandard = "its scores are multiplied by a learned temperature"
        return out

    def on_attention(self, call: AttentionCall) -> Tensor:
        if call.v.is_nested:
            raise UnsmoothError(
                f"{self.stack[-1]} runs attention on nested tensors, whose maps have no size. Use a variant of the "
                "host that pads and masks its tokens."
            )
        out = super().on_attention(call)
        shape = tuple(call.v.shape)
        start = self.open[-1].call.start if self.open else 0
        order = sum(event.at > start and event.core == self.stack[-1] for event in self.trace.attentions)
        tokens_last = call.v.stride(-1) != 1 and self.side == "left"  # a map on the right takes channels first
        event = AttentionEvent(
            self.tick(), self.stack[-1], order, call.via, (), shape, shape[-2], tokens_last, self.side
        )
        if call.q is not None:
            event.queries = tuple(call.q.shape)
            event.scale_after = call.scale if call.scale is not None else call.q.shape[-1] ** -0.5
        else:
            weights = call.map()
            event.queries = (*weights.shape[:-1], call.v.shape[-1])
            inside = [product for product in self.products if product.at > start]
            matching = [i for i, p in enumerate(inside) if p.size == weights.shape[-2:]]
            if matching:
                product = inside[matching[-1]]
                event.product = matching[-1] + 1
                event.queries = product.queries
                event.scale_q, event.scale_k, event.scale_after = product.scale_q, product.scale_k, self.scale_after
            else:
                self.nonstandard = "its scores are not a product of queries and keys"
        scale = event.scale_q * event.scale_k * event.scale_after
        if not self.nonstandard and not math.isclose(scale, event.queries[-1] ** -0.5, rel_tol=1e-4):
            self.nonstandard = f"its scores are scaled by {scale:.4g} and not by 1/√(head channels)"
        event.nonstandard_scores, event.mixed = self.nonstandard, self.mixed
        self.trace.attentions.append(event)
        self.reset_scores()
        return out


def _sums_over_keys(weights: Tensor) -> bool:
    """Whether the last axis of a map is that of the keys: its sums are equal, also if heads were mixed.

    A map on the meta device has no values, and is taken as it is.
    """

    def equal(sums: Tensor) -> bool:
        return bool((sums - sums.mean(-1, keepdim=True)).abs().max() <= 1e-3 * sums.abs().max())

    return weights.is_meta or equal(weights.sum(-1)) or not equal(weights.sum(-2))


@contextmanager
def _hooked(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    handles = []
    try:
        for name, module in model.named_modules():
            if f".{PREFIX}" in f".{name}":
                continue  # what a remedy added runs as part of the host's module
            handles.append(module.register_forward_pre_hook(recorder.enter(name), with_kwargs=True))
            handles.append(module.register_forward_hook(recorder.leave))
        yield
    finally:
        for handle in handles:
            handle.remove()


def trace(model: nn.Module, example: Example, lists: Collection[str] = ()) -> Trace:
    """Trace one forward pass of `model` on `example`.

    `lists` names each `nn.ModuleList` that is a block: its call starts when the first of its members runs.
    """
    result = Trace()
    recorder = _Recorder(model, result, lists)
    with eval_mode(model), _hooked(model, recorder), recorder:
        run(model, example)
    return result

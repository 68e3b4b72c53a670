"""Additions and multiplications per image, counted during a forward pass.

A dispatch mode sees every operator that torch runs. Matrix products and convolutions, L1 distances of adder layers, and
elementwise arithmetic are counted by the rules below. All other operators (norms, softmax, activations, comparisons,
and those without a rule) are listed by name with their number of results.

    products     a multiply-add is one multiplication and one addition; a bias is one more addition
    distances    |a − b| summed: two additions for each pair, a subtraction and a sum; the sign is free
    int8         the same in a model folded to int8: differences and sums of eight bytes; then one 32-bit sum for eight
    elementwise  residual sums, scalings, means, remedies
    estimated    eigenvectors of an n × n matrix: 9n³ operations, half of them multiplications
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from unsmooth.hosts.inputs import batch_inputs, example_input, first_tensor, run
from unsmooth.hosts.modes import eval_mode
from unsmooth.results.bench import Count, Operations

Size = tuple[int, ...]  # channels, height and width of an image, or the shape of another input


def count_operations(model: nn.Module, size: Size | None = None) -> Operations:
    """Operations of a model per image (default: of its own image size). The model is not changed."""
    example = example_input(model) if size is None else batch_inputs(model, torch.zeros(1, *size))
    with eval_mode(model), unfused(), Counting() as counting:
        run(model, example)
    return counting.operations()


@contextmanager
def unfused() -> Iterator[None]:
    """Run attention without fused kernels, which differ between devices and hide their operations."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class Counting(TorchDispatchMode):
    """Counts the operations that run inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts: dict[str, Count] = {part: Count() for part in RULES}
        self.divide = 0
        self.left_out: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2].removesuffix("_")  # x.add_(y) counts as x + y
        known = name in FREE or any(name in rules for rules in RULES.values())
        if not known and not func.is_view:
            with self:  # count the operators that it is made of
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **kwargs)
        out = first_tensor(result)
        if out is None or func.is_view or name in FREE or not (out.is_floating_point() or out.is_complex()):
            return result
        self.count(name, args, kwargs, out)
        return result

    def count(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> None:
        counts = {part: rules[name](args, kwargs, out) for part, rules in RULES.items() if name in rules}
        for part, count in counts.items():
            if count is not None:
                self.parts[part] += count
        if name in NORMALIZED:
            self.left_out["layer_norm"] += out.numel()
        if any(count is not None for count in counts.values()):
            return
        if name == "div":
            self.divide += out.numel()
        else:
            family = next((word for word in FAMILIES if word in name), name.lstrip("_"))
            self.left_out[family] += out.numel()

    def operations(self) -> Operations:
        parts = {part: count for part, count in self.parts.items() if part not in INT8_PARTS or count != Count()}
        return Operations.from_parts(parts, self.divide, dict(self.left_out.most_common()))


Rule = Callable[[Sequence[Any], Mapping[str, Any], Tensor], Count | None]  # None: not counted


def _product(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    return Count(out.numel() * args[0].shape[-1], out.numel() * args[0].shape[-1])


def _product_and_bias(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    return Count(add=out.numel()) + _product(args[1:], kwargs, out)


def _convolution(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    image, weight, bias, transposed = args[0], args[1], args[2], args[6]
    multiply = (image if transposed else out).numel() * weight[0].numel()
    return Count(multiply + (0 if bias is None else out.numel()), multiply)


def _distances(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    return Count(add=2 * out.numel() * args[0].shape[-1])


def _int8_distances(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    groups = out.numel() * -(-args[0].shape[-1] // 8)
    return Count(add=out.numel() * args[0].shape[-1] + 7 * groups)  # differences, and their sums within a group


def _int8_sums(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    return Count(add=out.numel() * -(-args[0].shape[-1] // 8))


def _int8_linear(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    inputs = args[0].numel()  # divided by the step, zero points subtracted; outputs are scaled and shifted
    return Count(inputs + out.numel(), inputs + out.numel())


def _int8_scores(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    inputs = args[0].numel() + args[1].numel()
    return Count(inputs, inputs + out.numel())


def _sum(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    return Count(add=args[0].numel() - out.numel())


def _mean(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    return Count(args[0].numel() - out.numel(), out.numel())  # 1/n is a constant


def _add(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    alpha = args[2] if len(args) > 2 else kwargs.get("alpha", 1)
    return Count(out.numel(), 0 if alpha == 1 else out.numel())


def _multiply(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    return Count(multiply=out.numel())


def _divide(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count | None:
    return None if isinstance(args[1], Tensor) else Count(multiply=out.numel())  # times 1/constant


def _power(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count | None:
    return Count(multiply=out.numel()) if isinstance(args[1], int | float) and args[1] == 2 else None


def _add_product(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    factors = 1 if kwargs.get("value", 1) == 1 else 2
    return Count(out.numel(), factors * out.numel())


def _interpolate(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    return Count(2 * out.numel(), out.numel())  # a + t(b − a)


def _eigenvectors(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Count:
    matrix = args[0]
    half = 9 * matrix.shape[-1] ** 3 * math.prod(matrix.shape[:-2]) // 2
    return Count(half, half)


RULES: dict[str, dict[str, Rule]] = {
    "products": {
        "mm": _product, "bmm": _product, "mv": _product, "addmm": _product_and_bias, "baddbmm": _product_and_bias,
        "convolution": _convolution,
    },
    "distances": {"l1_scores": _distances},
    "int8": {"adder_linear_int8": _int8_distances, "l1_scores_int8": _int8_distances},
    "int8_sums": {"adder_linear_int8": _int8_sums, "l1_scores_int8": _int8_sums},
    "elementwise": {
        "add": _add, "sub": _add, "rsub": _add, "mul": _multiply, "div": _divide, "pow": _power,
        "addcmul": _add_product, "lerp": _interpolate, "sum": _sum, "mean": _mean,
        "adder_linear_int8": _int8_linear, "l1_scores_int8": _int8_scores,
    },
    "estimated": {"linalg_eigh": _eigenvectors, "_linalg_eigh": _eigenvectors},
}  # fmt: skip

INT8_PARTS = ("int8", "int8_sums")  # only of models folded to int8
NORMALIZED = ("adder_linear_int8",)  # operators that include a LayerNorm

# Operators that are left out are listed under these names, whichever variant torch runs.
FAMILIES = ("layer_norm", "batch_norm", "group_norm", "rms_norm", "softmax")

# Moving data, creating it or changing its sign: no arithmetic.
FREE = frozenset({
    "abs", "neg", "sign", "_to_copy", "copy", "clone", "contiguous", "cat", "stack", "flip", "roll", "index",
    "index_select", "gather", "embedding", "slice_scatter", "masked_fill", "where", "constant_pad_nd", "im2col",
    "col2im", "_unsafe_view", "view_as_complex", "view_as_real", "as_strided", "repeat", "empty", "empty_like",
    "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros", "ones", "ones_like",
    "new_ones", "full", "full_like", "new_full", "fill", "zero", "scalar_tensor", "arange", "lift_fresh",
    "pixel_shuffle", "pixel_unshuffle", "unfold", "channel_shuffle", "resize", "_unsafe_index", "upsample_nearest2d",
})  # fmt: skip

"""Products of two tensors in one standard form: `left @ right`, with the summed axis last in `left`.

A host writes the same product in many ways: `a @ b`, `torch.bmm`, `torch.einsum` with an equation or with lists of
subscripts, in any order of axes. The seam compares and changes the standard form; a product that nobody changes is run
as the host wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class Product:
    """A product of two tensors.

    Attributes:
        left: The first factor, (…, rows, summed).
        right: The second factor, (…, summed, columns).
        operands: The tensors that the host multiplies, in the order of `left` and `right`.
        run: `run()` is the product as the host wrote it, in its layout.
        to_host: Brings a result (…, rows, columns) to the layout of the host; None if it is the same.
        to_standard: The inverse of `to_host`.
    """

    left: Tensor
    right: Tensor
    operands: tuple[Tensor, Tensor]
    run: Callable[[], Tensor]
    to_host: Callable[[Tensor], Tensor] | None = None
    to_standard: Callable[[Tensor], Tensor] | None = None

    def transposed(self) -> Product:
        """The same product with the factors exchanged: rightᵀ @ leftᵀ."""
        to_host, to_standard = self.to_host, self.to_standard
        return Product(
            self.right.mT, self.left.mT, self.operands[::-1], self.run,
            lambda out: to_host(out.mT) if to_host else out.mT.contiguous(),  # as a matrix product, for `view`
            lambda out: (to_standard(out) if to_standard else out).mT,
        )  # fmt: skip

    def result(self, out: Tensor) -> Tensor:
        """A result in standard form, in the layout of the host."""
        return out if self.to_host is None else self.to_host(out)

    def standard(self, out: Tensor) -> Tensor:
        """A result in the layout of the host, in standard form."""
        return out if self.to_standard is None else self.to_standard(out)


def matrix_product(func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product:
    """`torch.matmul`, `torch.bmm` and their methods."""
    a, b = _factors(*args, **kwargs)
    return Product(a, b, (a, b), lambda: func(*args, **kwargs))


def _factors(
    input: Tensor, other: Tensor | None = None, mat2: Tensor | None = None, tensor2: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return input, next(t for t in (other, mat2, tensor2) if t is not None)


def einsum_product(func: Callable[..., Tensor], args: tuple[Any, ...]) -> Product | None:
    """`torch.einsum` of two tensors that sums over one axis; None for any other einsum."""
    equation, operands = einsum_arguments(*args)
    if len(operands) != 2:
        return None
    a, b = operands
    read = read_equation if torch.compiler.is_compiling() else _read_cached
    layout = read(equation, a.ndim, b.ndim)
    if layout is None:
        return None
    left = _arrange(a, layout.left, layout.left_missing)
    right = _arrange(b, layout.right, layout.right_missing)
    columns = right.shape[layout.summed_axis + 1 :]
    if len(columns) != 1:
        right = right.flatten(layout.summed_axis + 1)

    def to_host(out: Tensor) -> Tensor:
        out = out if len(columns) == 1 else out.unflatten(-1, columns)
        return out.permute(layout.out)

    def to_standard(out: Tensor) -> Tensor:
        out = out.permute(layout.back)
        return out if len(columns) == 1 else out.flatten(-len(columns))

    return Product(left, right, (a, b), lambda: func(*args), to_host, to_standard)


def einsum_arguments(*args: Any) -> tuple[str, Sequence[Tensor]]:
    """The equation and the operands of an einsum: an equation first, or operands and lists of subscripts in turn."""
    if isinstance(args[0], str):
        listed = len(args) == 2 and isinstance(args[1], list | tuple)
        return args[0], args[1] if listed else args[1:]
    equation = ",".join("".join(map(_letter, subscripts)) for subscripts in args[1::2])
    if len(args) % 2 == 0:
        return equation, args[::2]
    return f"{equation}->{''.join(map(_letter, args[-1]))}", args[:-1:2]


def _letter(subscript: Any) -> str:
    if subscript is Ellipsis:
        return "..."
    return chr(ord("A") + subscript) if subscript < 26 else chr(ord("a") + subscript - 26)


@dataclass(frozen=True)
class EinsumLayout:
    """How the axes of an einsum become those of `left @ right`.

    `left` and `right` are permutations, after which the axes of the batch that a factor does not have are inserted;
    `out` brings the axes of the standard result to the layout of the host, and `back` is its inverse.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    left_missing: tuple[int, ...]
    right_missing: tuple[int, ...]
    summed_axis: int
    out: tuple[int, ...]
    back: tuple[int, ...]


def read_equation(equation: str, axes_a: int, axes_b: int) -> EinsumLayout | None:
    """The layout of an einsum of two operands, or None if it is not a product that sums over exactly one axis."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    if inputs.count(",") != 1:
        return None
    a, b = (_labels(part, axes) for part, axes in zip(inputs.split(","), (axes_a, axes_b), strict=True))
    if a is None or b is None or len(set(a)) != len(a) or len(set(b)) != len(b):
        return None
    dots = sorted({label for label in (*a, *b) if label.startswith(".")}, key=lambda label: -int(label[1:]))
    if arrow:
        plain = output.replace("...", ".")
        result = [label for c in plain for label in (dots if c == "." else [c])]
    else:
        result = dots + sorted(label for label in set(a) ^ set(b) if not label.startswith("."))
    summed = [label for label in a if label in b and label not in result]
    if len(summed) != 1 or set(result) | set(summed) != set(a) | set(b):
        return None
    rows = [label for label in a if label not in b]
    columns = [label for label in b if label not in a]
    if not rows or not columns:
        return None
    row = max(rows, key=a.index)  # other axes of the first factor alone count as batch, as heads of shared keys
    batch = [label for label in result if label != row and label not in columns]
    standard = [*batch, row, *columns]
    return EinsumLayout(
        tuple(a.index(label) for label in (*batch, row, summed[0]) if label in a),
        tuple(b.index(label) for label in (*batch, summed[0], *columns) if label in b),
        tuple(i for i, label in enumerate(batch) if label not in a),
        tuple(i for i, label in enumerate(batch) if label not in b),
        len(batch),
        tuple(standard.index(label) for label in result),
        tuple(result.index(label) for label in standard),
    )


_read_cached = lru_cache(maxsize=1024)(read_equation)


def _labels(part: str, axes: int) -> list[str] | None:
    """One label per axis; the axes of an ellipsis are numbered from the last one."""
    if "..." not in part:
        return list(part) if len(part) == axes else None
    before, _, after = part.partition("...")
    hidden = axes - len(before) - len(after)
    return [*before, *(f".{i}" for i in reversed(range(hidden))), *after] if hidden >= 0 else None


def _arrange(x: Tensor, axes: tuple[int, ...], missing: tuple[int, ...]) -> Tensor:
    x = x.permute(axes)
    for axis in missing:
        x = x.unsqueeze(axis)
    return x

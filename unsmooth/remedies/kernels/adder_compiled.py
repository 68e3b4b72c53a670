"""Adder operators compiled by numba for the CPU that they run on: fp32 distances, their gradients, and int8 distances.

The inner loops are vector code, written as LLVM instructions, because a compiler does not keep a tile of sums in
registers by itself. A tile is a few rows by one vector of columns::

    l1_tile     out -= |x − w|                    subtract, clear the sign, add
    pull_tile   out = Σ clamp(w − x, −b, b)·g     subtract, two selections, multiply-add
    sad_tile    out = Σ |x − w| of bytes          one x86 instruction for 32 or 64 bytes, or else seven for any CPU

Right factors are packed into panels of one vector of columns, so that every load is contiguous. No sum depends on the
number of threads. `unsmooth.remedies.kernels.adder.compiled_operators` imports this file, if numba is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from unsmooth.remedies.kernels.parallel import over_spans

I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _features() -> set[str]:
    """Features of the CPU that numba compiles for: of this one, unless the environment names another."""
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES:
        named = (numba.config.CPU_FEATURES or "").split(",")
        return {feature[1:] for feature in named if feature.startswith("+")}
    try:
        return {name for name, present in binding.get_host_cpu_features().items() if present}
    except RuntimeError:  # not known on this platform
        return set()


FEATURES = _features()
WIDE = "avx512bw" in FEATURES
LANES = 16 if WIDE else 8 if "avx2" in FEATURES else 4  # fp32 values of a vector
ROWS = 12 if WIDE else 8  # rows of a tile of distances
PULL_ROWS = 12 if WIDE else 4  # rows of a tile of gradients, which also holds its inputs
CHUNK = 128  # terms that are summed in registers, before they are added to the output
GROUP = 8  # bytes that one sum of absolute differences covers, and outputs of a panel of bytes
SAD = "llvm.x86.avx512.psad.bw.512" if WIDE else "llvm.x86.avx2.psad.bw" if "avx2" in FEATURES else ""
SAD_PARTS = 1 if WIDE else 2 if SAD else 4  # vectors of a group of 64 bytes
SAD_ROWS = 12 if WIDE else 6 if SAD else 2
TYPES = {torch.float32: "=f4", torch.uint8: "|u1", torch.int8: "|i1", torch.int32: "=i4"}


def jit(*signature: Any, **options: Any) -> Callable[[Any], Any]:
    """Compile a function for one signature, and cache it on disk if any folder for it is writable."""

    def compiled(function: Any) -> Any:
        try:
            return numba.njit(*signature, nogil=True, cache=True, **options)(function)
        except (RuntimeError, OSError):  # numba found no folder for its cache
            return numba.njit(*signature, nogil=True, **options)(function)

    return compiled


class Vector:
    """Instructions on vectors of one type, for a builder of LLVM code."""

    def __init__(self, builder: Any, element: Any, lanes: int):
        self.builder, self.element, self.lanes = builder, element, lanes
        self.type = ir.VectorType(element, lanes)

    def constant(self, value: float) -> Any:
        return ir.Constant(self.type, [value] * self.lanes)

    def splat(self, value: Any) -> Any:
        undefined = ir.Constant(self.type, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(
            first, undefined, ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        )

    def load(self, pointer: Any) -> Any:
        return self.builder.load(self.builder.bitcast(pointer, self.type.as_pointer()), align=self.element_bytes)

    def store(self, value: Any, pointer: Any) -> None:
        self.builder.store(value, self.builder.bitcast(pointer, self.type.as_pointer()), align=self.element_bytes)

    @property
    def element_bytes(self) -> int:
        return 4 if self.element is F32 else self.element.width // 8

    def call(self, name: str, *args: Any) -> Any:
        kind = ir.FunctionType(self.type, [arg.type for arg in args])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), args)

    def variables(self, count: int) -> list[Any]:
        """Variables, which LLVM keeps in registers, set to zero."""
        pointers = [cgutils.alloca_once(self.builder, self.type) for _ in range(count)]
        for pointer in pointers:
            self.builder.store(self.constant(0), pointer)
        return pointers


def _pointers(builder: Any, address: Any, element: Any, stride: Any, rows: int) -> list[Any]:
    first = builder.inttoptr(address, element.as_pointer())
    return [builder.gep(first, [builder.mul(stride, ir.Constant(I64, r))]) for r in range(rows)]


def _tile(emit: Callable[..., None], arguments: Sequence[Any]) -> Any:
    """A function of addresses and numbers for compiled code, whose body is the LLVM code that `emit` writes."""
    signature = types.void(*arguments)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit(builder, *args)
        return context.get_dummy_value()

    return signature, codegen


def _emit_l1(builder: Any, rows: int, x: Any, ldx: Any, w: Any, out: Any, ldo: Any, depth: Any, first: Any) -> None:
    vector = Vector(builder, F32, LANES)
    sources, targets = (_pointers(builder, *each, rows) for each in ((x, F32, ldx), (out, F32, ldo)))
    panel, sums = builder.inttoptr(w, F32.as_pointer()), vector.variables(rows)
    with cgutils.for_range(builder, depth) as loop:
        column = vector.load(builder.gep(panel, [builder.mul(loop.index, ir.Constant(I64, LANES))]))
        for source, total in zip(sources, sums, strict=True):
            value = vector.splat(builder.load(builder.gep(source, [loop.index])))
            distance = vector.call(f"llvm.fabs.v{LANES}f32", builder.fsub(column, value))
            builder.store(builder.fadd(builder.load(total), distance), total)
    for target, total in zip(targets, sums, strict=True):
        before = builder.select(first, vector.constant(0.0), vector.load(target))
        vector.store(builder.fsub(before, builder.load(total)), target)


@intrinsic
def l1_tile(context, x, ldx, w, out, ldo, depth, first):  # type: ignore[no-untyped-def]
    arguments = [types.intp] * 6 + [types.boolean]
    return _tile(lambda builder, *args: _emit_l1(builder, ROWS, *args), arguments)


@intrinsic
def l1_row(context, x, ldx, w, out, ldo, depth, first):  # type: ignore[no-untyped-def]
    arguments = [types.intp] * 6 + [types.boolean]
    return _tile(lambda builder, *args: _emit_l1(builder, 1, *args), arguments)


def _emit_pull(
    builder: Any, rows: int, x: Any, ldx: Any, w: Any, g: Any, ldg: Any, count: Any, bound: Any, out: Any, ldo: Any
) -> None:
    vector = Vector(builder, F32, LANES)
    inputs = [vector.load(pointer) for pointer in _pointers(builder, x, F32, ldx, rows)]
    factors, targets = (_pointers(builder, *each, rows) for each in ((g, F32, ldg), (out, F32, ldo)))
    panel, sums = builder.inttoptr(w, F32.as_pointer()), vector.variables(rows)
    high = vector.splat(bound)
    low = builder.fsub(vector.constant(-0.0), high)
    with cgutils.for_range(builder, count) as loop:
        column = vector.load(builder.gep(panel, [builder.mul(loop.index, ir.Constant(I64, LANES))]))
        for value, factor, total in zip(inputs, factors, sums, strict=True):
            pull = builder.fsub(column, value)
            for limit, sign in ((high, ">"), (low, "<")):  # a NaN stays
                pull = builder.select(builder.fcmp_ordered(sign, pull, limit), limit, pull)
            weight = vector.splat(builder.load(builder.gep(factor, [loop.index])))
            added = vector.call(f"llvm.fmuladd.v{LANES}f32", pull, weight, builder.load(total))
            builder.store(added, total)
    for target, total in zip(targets, sums, strict=True):
        vector.store(builder.load(total), target)


PULL_ARGUMENTS = [types.intp] * 6 + [types.float32] + [types.intp] * 2


@intrinsic
def pull_tile(context, x, ldx, w, g, ldg, count, bound, out, ldo):  # type: ignore[no-untyped-def]
    return _tile(lambda builder, *args: _emit_pull(builder, PULL_ROWS, *args), PULL_ARGUMENTS)


@intrinsic
def pull_row(context, x, ldx, w, g, ldg, count, bound, out, ldo):  # type: ignore[no-untyped-def]
    return _tile(lambda builder, *args: _emit_pull(builder, 1, *args), PULL_ARGUMENTS)


def _sad(sums: Vector, a: Any, b: Any) -> Any:
    """Sums of the absolute differences of groups of eight bytes, as 64-bit integers."""
    builder, lanes = sums.builder, sums.lanes
    some_bytes = ir.VectorType(I8, GROUP * lanes)
    a, b = builder.bitcast(a, some_bytes), builder.bitcast(b, some_bytes)
    if SAD:
        return sums.call(SAD, a, b)
    larger = builder.icmp_unsigned(">", a, b)
    differences = builder.select(larger, builder.sub(a, b), builder.sub(b, a))
    words, mask = builder.bitcast(differences, sums.type), sums.constant(0x00FF00FF00FF00FF)
    words = builder.add(builder.and_(words, mask), builder.and_(builder.lshr(words, sums.constant(8)), mask))
    for shift in (32, 16):
        words = builder.add(words, builder.lshr(words, sums.constant(shift)))
    return builder.and_(words, sums.constant(0xFFFF))


def _emit_sad(builder: Any, rows: int, x: Any, ldx: Any, w: Any, out: Any, ldo: Any, depth: Any) -> None:
    """Rows by eight columns. `ldx` and `depth` count groups of eight bytes, `ldo` 32-bit integers."""
    lanes = GROUP // SAD_PARTS
    vector = Vector(builder, I64, lanes)
    sources, targets = (_pointers(builder, *each, rows) for each in ((x, I64, ldx), (out, I32, ldo)))
    panel, sums = builder.inttoptr(w, I64.as_pointer()), vector.variables(rows * SAD_PARTS)
    with cgutils.for_range(builder, depth) as loop:
        start = builder.gep(panel, [builder.mul(loop.index, ir.Constant(I64, GROUP))])
        columns = [vector.load(builder.gep(start, [ir.Constant(I64, p * lanes)])) for p in range(SAD_PARTS)]
        for r, source in enumerate(sources):
            value = vector.splat(builder.load(builder.gep(source, [loop.index]), align=8))
            for p, column in enumerate(columns):
                total = sums[r * SAD_PARTS + p]
                builder.store(builder.add(builder.load(total), _sad(vector, column, value)), total)
    result = Vector(builder, I32, lanes)
    for r, target in enumerate(targets):
        for p in range(SAD_PARTS):
            short = builder.trunc(builder.load(sums[r * SAD_PARTS + p]), result.type)
            result.store(short, builder.gep(target, [ir.Constant(I64, p * lanes)]))


@intrinsic
def sad_tile(context, x, ldx, w, out, ldo, depth):  # type: ignore[no-untyped-def]
    return _tile(lambda builder, *args: _emit_sad(builder, SAD_ROWS, *args), [types.intp] * 6)


@intrinsic
def sad_row(context, x, ldx, w, out, ldo, depth):  # type: ignore[no-untyped-def]
    return _tile(lambda builder, *args: _emit_sad(builder, 1, *args), [types.intp] * 6)


CUBE, PANELS = types.float32[:, :, ::1], types.float32[:, :, :, ::1]
SPAN = (types.intp, types.intp, types.intp, types.intp)  # of the first axis, and of the rows


@jit(types.void(CUBE, PANELS, CUBE, *SPAN))
def _l1(x, w, out, first, last, start, stop):  # type: ignore[no-untyped-def]
    depth, columns, panels = x.shape[2], out.shape[2], w.shape[1]
    ragged = np.empty((ROWS, LANES), np.float32)  # the last panel may be wider than the output
    for b in range(first, last):
        inputs, weights, outputs = x[b].ctypes.data, w[b].ctypes.data, out[b].ctypes.data
        for p in range(panels):
            width = min(LANES, columns - p * LANES)
            tile = start
            while tile < stop:
                rows = ROWS if stop - start >= ROWS else 1
                row = min(tile, stop - rows)  # the last tile may compute rows again
                target, stride = outputs + 4 * (row * columns + p * LANES), columns
                if width < LANES:
                    target, stride = ragged.ctypes.data, LANES
                for c in range(0, depth, CHUNK):
                    source, panel = inputs + 4 * (row * depth + c), weights + 4 * LANES * (p * depth + c)
                    if rows == 1:
                        l1_row(source, depth, panel, target, stride, min(CHUNK, depth - c), c == 0)
                    else:
                        l1_tile(source, depth, panel, target, stride, min(CHUNK, depth - c), c == 0)
                if width < LANES:
                    for r in range(rows):
                        for c in range(width):
                            out[b, row + r, p * LANES + c] = ragged[r, c]
                tile += rows


@jit(types.void(CUBE, PANELS, CUBE, types.float32, CUBE, *SPAN))
def _pull(x, w, g, bound, out, first, last, start, stop):  # type: ignore[no-untyped-def]
    depth, panels, count = x.shape[2], w.shape[1], w.shape[2]
    for b in range(first, last):
        inputs, weights, factors, outputs = x[b].ctypes.data, w[b].ctypes.data, g[b].ctypes.data, out[b].ctypes.data
        for p in range(panels):
            panel = weights + 4 * LANES * p * count
            tile = start
            while tile < stop:
                rows = PULL_ROWS if stop - start >= PULL_ROWS else 1
                row = min(tile, stop - rows)
                source, target = inputs + 4 * (row * depth + p * LANES), outputs + 4 * (row * depth + p * LANES)
                factor = factors + 4 * row * count
                if rows == 1:
                    pull_row(source, depth, panel, factor, count, count, bound, target, depth)
                else:
                    pull_tile(source, depth, panel, factor, count, count, bound, target, depth)
                tile += rows


class _View:
    """A tensor for NumPy. `Tensor.numpy` forbids to resize its memory, which FSDP does with gathered weights."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor  # its memory lives as long as the array
        self.__array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": np.dtype(TYPES[tensor.dtype]).str,
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def _array(tensor: Tensor) -> Any:
    return np.asarray(_View(tensor.detach().contiguous()))


def _run(kernel: Any, *tensors: Tensor | float, batch: int, rows: int, step: int) -> None:
    arrays = [_array(each) if isinstance(each, Tensor) else each for each in tensors]
    if batch > 1:
        over_spans(lambda first, last: kernel(*arrays, first, last, 0, rows), batch)
    else:
        over_spans(lambda start, stop: kernel(*arrays, 0, 1, start, stop), rows, step)


def l1(q: Tensor, k: Tensor) -> Tensor:
    """``-sum_c |q[b, n, c] - k[b, m, c]|`` of fp32 tensors, none of whose sizes is zero."""
    (b, n, d), m = q.shape, k.shape[1]
    k = F.pad(k, (0, 0, 0, -m % LANES)) if m % LANES else k
    panels = k.reshape(b, -1, LANES, d).transpose(2, 3).contiguous()
    out = q.new_empty(b, n, m)
    _run(_l1, q.contiguous(), panels, out, batch=b, rows=n, step=ROWS)
    return out


def pull(x: Tensor, w: Tensor, g: Tensor, bound: float) -> Tensor:
    """``sum_m clamp(w[b, m, c] - x[b, n, c], -bound, bound) g[b, n, m]`` of fp32 tensors, as in `l1`."""
    (b, n, d), m = x.shape, w.shape[1]
    x, w = (F.pad(each, (0, -d % LANES)) if d % LANES else each for each in (x, w))
    panels = w.reshape(b, m, -1, LANES).transpose(1, 2).contiguous()
    out = x.new_empty(x.shape)
    _run(_pull, x.contiguous(), panels, g.contiguous(), bound, out, batch=b, rows=n, step=PULL_ROWS)
    return out[..., :d].contiguous()


# The functions below are compiled when they are first called: only models folded to int8 use them.


@jit()
def _to_bytes(x, inverse, zero, out):  # type: ignore[no-untyped-def]
    for c in range(x.shape[0]):
        value = x[c] * inverse - zero[c]
        value = value if value > np.float32(0) else np.float32(0)
        value = value if value < np.float32(255) else np.float32(255)
        out[c] = np.uint8(np.int32(value))


@jit(fastmath={"reassoc", "nsz", "contract"})
def _normalize(sums, step, scale, shift, out):  # type: ignore[no-untyped-def]
    """LayerNorm of −step·sums, then scale and shift."""
    width, total, squares = len(sums), np.int64(0), np.float32(0)
    for c in range(width):
        total += sums[c]
    mean = np.float32(total / width)
    for c in range(width):
        difference = np.float32(sums[c]) - mean
        squares += difference * difference
    factor = np.float32(step / np.sqrt(squares / width * step * step + np.float32(1e-5)))
    for c in range(width):
        out[c] = shift[c] - scale[c] * (factor * (np.float32(sums[c]) - mean))


@jit()
def _scale(sums, factor, out):  # type: ignore[no-untyped-def]
    for c in range(len(out)):
        out[c] = factor * np.float32(sums[c])


@jit()
def _widen(row, low, high):  # type: ignore[no-untyped-def]
    for c in range(len(row)):
        low[c] = min(low[c], row[c])
        high[c] = max(high[c], row[c])


@jit()
def _sads(rows, packed, sums, count):  # type: ignore[no-untyped-def]
    """The distances of one tile of rows, or of one row, to all columns."""
    panels, groups = packed.shape[0], packed.shape[1]
    source, panel, target = rows.ctypes.data, packed.ctypes.data, sums.ctypes.data
    for _ in range(panels):
        if count == 1:
            sad_row(source, groups, panel, target, GROUP * panels, groups)
        else:
            sad_tile(source, groups, panel, target, GROUP * panels, groups)
        panel += groups * GROUP * GROUP
        target += 4 * GROUP


@jit()
def _linear_int8(x, w, zero, step, width, scale, shift, out, start, stop):  # type: ignore[no-untyped-def]
    panels, groups = w.shape[0], w.shape[1]
    inverse = np.float32(1) / step
    rows = np.zeros((SAD_ROWS, GROUP * groups), np.uint8)
    sums = np.empty((SAD_ROWS, GROUP * panels), np.int32)
    count = SAD_ROWS if stop - start >= SAD_ROWS else 1
    tile = start
    while tile < stop:
        first = min(tile, stop - count)  # the last tile may compute rows again
        for r in range(count):
            _to_bytes(x[first + r], inverse, zero, rows[r])
        _sads(rows, w, sums, count)
        for r in range(count):
            for p in range(0, len(scale), width):  # slices from zero: LLVM vectorises no loop that might wrap around
                span = slice(p, p + width)
                _normalize(sums[r][span], step, scale[span], shift[span], out[first + r][span])
        tile += count


@jit()
def _bytes_of_keys(k, zero, packed):  # type: ignore[no-untyped-def]
    """Fill the zero points and the packed bytes of keys (keys, channels), and return their step."""
    keys, depth = k.shape
    low, high = np.empty(depth, np.float32), np.empty(depth, np.float32)
    for c in range(depth):
        low[c] = high[c] = k[0, c]
    for m in range(1, keys):
        _widen(k[m], low, high)
    widest = np.float32(0)
    for c in range(depth):
        widest = max(widest, high[c] - low[c])
    step = widest / np.float32(254) if widest > 0 else np.float32(1)
    inverse = np.float32(1) / step
    for c in range(depth):
        zero[c] = np.floor(low[c] * inverse + np.float32(0.5)) - np.float32(0.5)
    row = np.zeros(packed.shape[1] * GROUP, np.uint8)
    words, panels = row.view(np.int64), packed.view(np.int64)
    for m in range(keys):
        _to_bytes(k[m], inverse, zero, row)
        for g in range(len(words)):
            panels[m // GROUP, g, m % GROUP, 0] = words[g]
    return step


@jit()
def _scores_int8(q, k, scale, out, first, last):  # type: ignore[no-untyped-def]
    queries, keys, depth = q.shape[1], k.shape[1], q.shape[2]
    panels, groups = -(-keys // GROUP), -(-depth // GROUP)
    packed = np.zeros((panels, groups, GROUP, GROUP), np.uint8)
    rows = np.zeros((SAD_ROWS, GROUP * groups), np.uint8)
    sums = np.empty((SAD_ROWS, GROUP * panels), np.int32)
    zero = np.empty(depth, np.float32)
    count = SAD_ROWS if queries >= SAD_ROWS else 1
    for b in range(first, last):
        step = _bytes_of_keys(k[b], zero, packed)
        inverse, factor = np.float32(1) / step, -(step * scale)
        tile = 0
        while tile < queries:
            top = min(tile, queries - count)
            for r in range(count):
                _to_bytes(q[b, top + r], inverse, zero, rows[r])
            _sads(rows, packed, sums, count)
            for r in range(count):
                _scale(sums[r], factor, out[b, top + r])
            tile += count


def linear_int8(
    x: Tensor, packed: Tensor, zero: Tensor, step: float, width: int, scale: Tensor, shift: Tensor
) -> Tensor:
    """An int8 adder layer and its LayerNorm: see `unsmooth.remedies.kernels.adder_int8`. `x` is (rows, inputs)."""
    out = x.new_empty(len(x), len(scale))
    a, w, z, gain, bias, y = (_array(t) for t in (x, packed, zero, scale, shift, out))

    def run(start: int, stop: int) -> None:
        _linear_int8(a, w, z, np.float32(step), width, gain, bias, y, start, stop)

    over_spans(run, len(x), SAD_ROWS)
    return out


def scores_int8(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Int8 scores of (batch, queries, channels) and (batch, keys, channels)."""
    out = q.new_empty(*q.shape[:2], k.shape[1])
    a, b, c = _array(q), _array(k), _array(out)
    over_spans(lambda first, last: _scores_int8(a, b, np.float32(scale), c, first, last), len(q))
    return out

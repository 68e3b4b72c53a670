"""The residual stream as a kind of tensor that reports the functions it takes part in.

A `TorchFunctionMode` is asked about every function of a block. A patch of its residual sums needs those of the stream
alone: a norm, and the sum. So the block gets its tokens as a `Stream`, whose results are plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unsmooth.seam.intercept import ADD, ALIAS, residual_side

# Returns what a branch adds, after its patches, and the new sum; None if the sum has no patch.
PatchedSum = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None


class Sums:
    """The residual sums of one forward pass, in order: each is done by its patch, if it has one."""

    __slots__ = ("coming", "known")

    def __init__(self, sums: Sequence[PatchedSum]) -> None:
        coming = list(sums)
        while coming and coming[-1] is None:  # after the last patched sum, nothing has to be followed
            coming.pop()
        self.coming = coming
        self.known: list[Tensor | None] = []  # the residual stream, under all its names

    def start(self, x: Tensor) -> Stream:
        self.known = []
        return self.follow(x)

    def follow(self, x: Tensor) -> Stream:
        """The tokens as a stream that reports to these sums."""
        stream: Stream = x if isinstance(x, Stream) else x.as_subclass(Stream)
        if x.__dict__ and stream is not x:
            stream.__dict__.update(x.__dict__)  # what is carried with the tokens
        stream.sums = self
        self.known.append(stream)
        return stream

    def add(self, func: Callable[..., Tensor], args: tuple[Any, ...]) -> Tensor:
        side = residual_side(self.known, args)
        if side is None:
            return func(*args)
        patched = self.coming.pop(0)
        out = func(*args) if patched is None else patched(args[side], args[1 - side])[1]
        return self.start(out) if self.coming else out


class Stream(Tensor):
    """The tokens of one forward pass of a block, until its last patched sum."""

    sums: Sums

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if kwargs:  # a sum with options of its own (alpha) cannot be scaled; then the sum is not reached
                return func(*args, **kwargs)
            if func in ADD and len(args) == 2:
                sums = (args[0] if isinstance(args[0], Stream) else args[1]).sums
                return sums.add(func, args) if sums.coming else func(*args)
            result = func(*args)
            if func in ALIAS and isinstance(args[0], Stream):
                sums = args[0].sums
                if sums.coming and any(args[0] is known for known in sums.known):
                    return sums.follow(result)
            return result


def can_be_stream(x: Any) -> bool:
    """Whether tokens can be a `Stream`: they are a plain tensor, and no mode looks at their functions."""
    return type(x) is Tensor and not torch._C._len_torch_function_stack()


def plain(output: Any) -> Any:
    """The output of a block without `Stream`s."""
    if isinstance(output, Stream):
        return output.as_subclass(Tensor)
    if type(output) is tuple:
        return tuple(map(plain, output))
    return output

"""Residual sums of one forward pass of a module, and what patches make of them.

    x + branch  →  skip·x + gain·patch(x, branch)

Sums are found in one of two ways. `seam.patched.PatchedForward` asks about every function of the module whether it is a
sum of the residual stream. Where the trace of the host shows that each sum is `x + branch` with the stream itself on
the left, a `ResidualStream` is that stream, and only its sums run our code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.seam.observers import ForwardObserver, active, observers_paused


@dataclass
class ResidualScale:
    """Factors of one residual sum: skip·x + gain·branch."""

    branch: str
    skip: float = 1.0
    gain: float = 1.0


@dataclass
class PatchedSum:
    """One residual sum of a module: what its patches make of it."""

    skip: float
    gain: float
    changes: list[nn.Module]  # patches of the branch

    @property
    def is_plain(self) -> bool:
        return self.skip == self.gain == 1.0 and not self.changes


def patched_sums(
    branches: Sequence[str], scales: Sequence[ResidualScale], changes: Sequence[tuple[str, nn.Module]]
) -> list[PatchedSum]:
    """The residual sums of a module with these branches, up to the last one that has a patch."""
    sums, last = [], 0
    for i, branch in enumerate(branches, start=1):
        skip, gain = 1.0, 1.0
        for scale in scales:
            if scale.branch == branch:
                skip, gain, last = skip * scale.skip, gain * scale.gain, i
        of_branch = [patch for name, patch in changes if name == branch]
        last = i if of_branch else last
        sums.append(PatchedSum(skip, gain, of_branch))
    return sums[:last]


class ResidualSums:
    """Counts the residual sums of one forward pass and applies the patches of each."""

    def __init__(self, sums: Sequence[PatchedSum], observers: Sequence[ForwardObserver]) -> None:
        self.sums, self.observers, self.count = sums, observers, 0

    @property
    def complete(self) -> bool:
        """Whether all patched sums were reached; none that follows them matters."""
        return self.count >= len(self.sums)

    def add(self, x: Tensor, branch: Tensor, plain: Callable[..., Tensor], *operands: Tensor) -> Tensor:
        """The next sum of the stream x and a branch. `plain(*operands)` is the sum as the host computes it."""
        patched = self.sums[self.count] if self.count < len(self.sums) else None
        self.count += 1
        if patched is None or patched.is_plain:
            return plain(*operands)
        observers = active(self.observers)
        if not observers:
            return _weighted_sum(x, branch, patched)[1]
        with observers_paused():
            added, out = _weighted_sum(x, branch, patched)
        for observer in observers:
            observer.saw_residual(x, added, out)
        return out


def _weighted_sum(x: Tensor, branch: Tensor, patched: PatchedSum) -> tuple[Tensor, Tensor]:
    """The term of the branch, after its patches, and skip·x + gain·branch."""
    for patch in patched.changes:
        branch = patch(x, branch)
    branch = branch if patched.gain == 1.0 else patched.gain * branch
    return branch, branch if patched.skip == 0.0 else branch.add(x, alpha=patched.skip)


class ResidualStream(Tensor):
    """The residual stream of a module: a view whose sums run our code. Every other function sees a plain tensor.

    Its own `__torch_function__` is off, as that of a parameter, so that other functions take no detour.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    sums: ResidualSums
    order: int  # of the next sum when this was the stream

    @staticmethod
    def of(x: Tensor, sums: ResidualSums) -> ResidualStream:
        stream = x.as_subclass(ResidualStream)
        stream.sums, stream.order = sums, sums.count
        return stream

    def add(self, other: Any, **options: Any) -> Tensor:
        sums = self.sums
        # Another tensor became the stream; a sum with options (alpha) cannot be scaled, and the count reports it.
        if self.order != sums.count or options or not isinstance(other, Tensor) or other.shape != self.shape:
            return Tensor.add(self, other, **options)
        out = sums.add(self, other, Tensor.add, self, other)
        return out if sums.complete else ResidualStream.of(out, sums)

    def __add__(self, other: Any) -> Tensor:
        return self.add(other)

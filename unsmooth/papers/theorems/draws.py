"""Shared by the theorems: random inputs, and a row of curves over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unsmooth.results.reproduction import ArmResult, MeasuredCurve

Theorem = Callable[[bool], list[ArmResult]]

TOKENS = 49


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def row(name: str, by: str, at: Sequence[float], curves: dict[str, list[float]]) -> ArmResult:
    measured = {
        label: MeasuredCurve(by=by, at=list(at), mean=list(means), sd=[None] * len(means))
        for label, means in curves.items()
    }
    return ArmResult(name=name, spec="", values={}, curves=measured)

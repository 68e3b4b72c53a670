"""Streaming mean and spread of numbers that arrive in batches."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from unsmooth.results.diagnosis import Spread


def finite_or_none(value: Any) -> Any:
    """A number or nested lists, with None for what is not finite."""
    if isinstance(value, list):
        return [finite_or_none(item) for item in value]
    return value if math.isfinite(value) else None


class Moments:
    """Streaming mean, variance and extremes over the first axis. Entries that are not finite are ignored."""

    def __init__(self) -> None:
        self.count: Tensor | None = None

    def add(self, values: Tensor) -> None:
        """Add a batch of numbers, (B, …)."""
        values = values.detach().double().cpu()
        finite = values.isfinite()
        zero = torch.zeros((), dtype=torch.float64)
        count = finite.sum(dim=0)
        mean = torch.where(finite, values, zero).sum(dim=0) / count.clamp_min(1)
        square = torch.where(finite, values - mean, zero).square().sum(dim=0)
        infinity = torch.full((), float("inf"), dtype=torch.float64)
        low = torch.where(finite, values, infinity).amin(dim=0)
        high = torch.where(finite, values, -infinity).amax(dim=0)
        if self.count is None:
            self.count, self.mean, self.square, self.low, self.high = count, mean, square, low, high
            return
        total = (self.count + count).clamp_min(1)
        step = mean - self.mean
        self.square = self.square + square + step.square() * self.count * count / total
        self.mean = self.mean + step * count / total
        self.low, self.high = self.low.minimum(low), self.high.maximum(high)
        self.count = self.count + count

    def spread(self) -> Spread | None:
        """Mean and spread so far; None if no entry was finite. Entries without a value are None."""
        if self.count is None or not self.count.any():
            return None
        nan = torch.full((), float("nan"), dtype=torch.float64)
        sd = torch.where(self.count > 1, (self.square / (self.count - 1).clamp_min(1)).sqrt(), nan)
        mean, low, high = (torch.where(self.count == 0, nan, v) for v in (self.mean, self.low, self.high))
        mean, sd, low, high = (finite_or_none(v.tolist()) for v in (mean, sd, low, high))
        return Spread(mean, sd, low, high, int(self.count.max()))

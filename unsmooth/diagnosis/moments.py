"""Streaming mean and spread of numbers that arrive in batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unsmooth.results.measured import Spread

Array = npt.NDArray[Any]


def finite_or_none(value: Any) -> Any:
    """A number or nested lists, with None for what is not finite."""
    if isinstance(value, list):
        return [finite_or_none(item) for item in value]
    return value if math.isfinite(value) else None


class Moments:
    """Streaming mean, variance and extremes over the first axis. Entries that are not finite are ignored.

    In NumPy: the arrays are small, and PyTorch takes longer per operation, more so below a probe.
    """

    def __init__(self) -> None:
        self.count: Array | None = None

    def add(self, values: Tensor) -> None:
        """Add a batch of numbers, (B, …)."""
        numbers = values.detach().double().cpu().numpy()
        finite = np.isfinite(numbers)
        count = finite.sum(axis=0)
        mean = np.where(finite, numbers, 0).sum(axis=0) / np.maximum(count, 1)
        square = np.square(np.where(finite, numbers - mean, 0)).sum(axis=0)
        low = np.where(finite, numbers, np.inf).min(axis=0)
        high = np.where(finite, numbers, -np.inf).max(axis=0)
        self._join(count, mean, square, low, high)

    def merge(self, other: Moments) -> None:
        """Add the numbers that another one has seen, as Chan, Golub and LeVeque do."""
        if other.count is not None:
            self._join(other.count, other.mean, other.square, other.low, other.high)

    def _join(self, count: Array, mean: Array, square: Array, low: Array, high: Array) -> None:
        if self.count is None:
            self.count, self.mean, self.square, self.low, self.high = count, mean, square, low, high
            return
        total = np.maximum(self.count + count, 1)
        step = mean - self.mean
        self.square = self.square + square + np.square(step) * self.count * count / total
        self.mean = self.mean + step * count / total
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
        self.count = self.count + count

    def spread(self) -> Spread | None:
        """Mean and spread so far; None if no entry was finite. Entries without a value are None."""
        if self.count is None or not self.count.any():
            return None
        sd = np.where(self.count > 1, np.sqrt(self.square / np.maximum(self.count - 1, 1)), np.nan)
        mean, low, high = (np.where(self.count == 0, np.nan, v) for v in (self.mean, self.low, self.high))
        mean, sd, low, high = (finite_or_none(v.tolist()) for v in (mean, sd, low, high))
        return Spread(mean, sd, low, high, int(self.count.max()))

"""Mean and spread of numbers that come in batches, without keeping them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DIGITS = 6  # significant digits in files: more than any vital resolves


@dataclass(frozen=True)
class Spread:
    """A number over images: its mean, standard deviation, extremes and how many images it stands on.

    Each is a float, or a nested list of floats for a vital that gives several (by head, by frequency). `sd` is None
    for what is one number for all images together.
    """

    mean: Any
    sd: Any = None
    low: Any = None
    high: Any = None
    images: int = 0

    def to_json(self) -> dict[str, Any]:
        known = {"mean": self.mean, "sd": self.sd}
        if not isinstance(self.mean, list):  # of curves and heads, mean and spread say enough
            known |= {"low": self.low, "high": self.high}
        return {name: shorten(value) for name, value in known.items() if value is not None} | {"images": self.images}


def shorten(value: Any) -> Any:
    """Floats with `DIGITS` digits; what is not finite becomes None, which JSON can write."""
    if isinstance(value, list | tuple):
        return [shorten(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if abs(value) < float("inf") else None
    return value


class Moments:
    """Streaming mean, variance and extremes over the first axis; entries that are not finite are left out."""

    def __init__(self) -> None:
        self.count: Tensor | None = None

    def add(self, values: Tensor) -> None:
        """A batch of numbers, (B, …)."""
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
        """What was seen; None where nothing finite was."""
        if self.count is None or not self.count.any():
            return None
        none = self.count == 0
        nan = torch.full((), float("nan"), dtype=torch.float64)
        sd = torch.where(self.count > 1, (self.square / (self.count - 1).clamp_min(1)).sqrt(), nan)
        mean, low, high = (torch.where(none, nan, v) for v in (self.mean, self.low, self.high))
        return Spread(mean.tolist(), sd.tolist(), low.tolist(), high.tolist(), int(self.count.max()))

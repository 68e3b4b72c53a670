"""How far apart two arms are, paired by seed and by image, with an interval that counts both as chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

DRAWS = 10_000
LARGEST = 10**7  # numbers that are drawn at a time

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Difference:
    """Mean difference in accuracy, its bootstrap interval, and the difference of each seed; all as shares."""

    mean: float
    low: float
    high: float
    by_seed: tuple[float, ...]

    @property
    def shown(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0

    @property
    def text(self) -> str:
        span = f"{_points(self.low)} to {_points(self.high)} points"
        return f"{_points(self.mean)} points ({span})" if self.shown else f"no difference shown ({span})"

    def to_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "low": self.low, "high": self.high, "by_seed": list(self.by_seed),
                "shown": self.shown, "text": self.text}  # fmt: skip


def paired_difference(ours: Array, base: Array, confidence: float = 0.95, draws: int = DRAWS) -> Difference:
    """The difference of two arms from which images each got right: arrays (seeds, images) of true and false.

    The bootstrap draws seeds and images again, each with replacement and both at once, and keeps pairs together. So few
    seeds are drawn too close to their own mean: deviations of seeds are stretched by √(n/(n−1)) and by Student's t over
    the normal quantile, so that where seeds are all that varies the interval is about as wide as the t interval (of two
    seeds, three quarters of it). A single seed says nothing about other seeds: the interval is over images alone.
    """
    d = np.asarray(ours, dtype=np.int8) - np.asarray(base, dtype=np.int8)
    seeds, images = d.shape
    by_seed = d.mean(axis=1)
    mean = float(by_seed.mean())
    # Images with equal differences in every seed are interchangeable: draw how many of each kind there are.
    kinds, counts = np.unique(d.T, axis=0, return_counts=True)
    chance = np.random.default_rng(0)
    of_seeds = chance.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds
    some = max(1, LARGEST // len(counts))  # draws at a time
    of_images = np.concatenate([
        chance.multinomial(images, counts / images, size=min(some, draws - at)) @ kinds / images
        for at in range(0, draws, some)
    ])  # fmt: skip
    drawn = (of_images * of_seeds).sum(axis=1)
    if seeds > 1:
        tail = 0.5 + confidence / 2
        stretch = np.sqrt(seeds / (seeds - 1)) * stats.t.ppf(tail, seeds - 1) / stats.norm.ppf(tail)
        drawn += (stretch - 1) * (of_seeds @ (by_seed - mean))
    low, high = np.quantile(drawn, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return Difference(mean, float(low), float(high), tuple(map(float, by_seed)))


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")

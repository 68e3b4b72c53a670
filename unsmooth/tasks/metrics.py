"""What the numbers of a run are called in words, and how they are written; the same for every task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Name in result.json: words, and the factor to what is written: shares as percent, a negative loss as a loss.
MEASURES = {
    "top1": ("top-1", 100), "top5": ("top-5", 100),
    "miou": ("mIoU", 100), "pixel_accuracy": ("pixel accuracy", 100), "mean_accuracy": ("mean class accuracy", 100),
    "accuracy": ("soft accuracy", 100),
    "loss": ("loss", 1), "neg_loss": ("loss", -1),
}  # fmt: skip


def in_words(values: Mapping[str, Any], digits: int = 2) -> str:
    """The measures that a result (or the val_ entries of a line of metrics) holds: `top-1 33.10 %, loss 1.8`."""
    found = ((name, values.get(name, values.get(f"val_{name}"))) for name in MEASURES)
    return ", ".join(_one(name, value, digits) for name, value in found if value is not None)


def _one(name: str, value: float, digits: int) -> str:
    words, factor = MEASURES[name]
    return f"{words} {factor * value:.{digits}f} %" if factor == 100 else f"{words} {factor * value:.4f}"

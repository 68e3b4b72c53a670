"""What the numbers of a run are called in words, and how they are written; the same for every task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Name in result.json: words, and whether it is a share, written as percent.
MEASURES = {
    "top1": ("top-1", True), "top5": ("top-5", True),
    "miou": ("mIoU", True), "pixel_accuracy": ("pixel accuracy", True), "mean_accuracy": ("mean class accuracy", True),
    "accuracy": ("soft accuracy", True),
    "loss": ("loss", False),
}  # fmt: skip


def in_words(values: Mapping[str, Any], digits: int = 2) -> str:
    """The measures that a result (or the val_ entries of a line of metrics) holds: `top-1 33.10 %, loss 1.8`."""
    found = ((name, values.get(name, values.get(f"val_{name}"))) for name in MEASURES)
    return ", ".join(_one(name, value, digits) for name, value in found if value is not None)


def _one(name: str, value: float, digits: int) -> str:
    words, share = MEASURES[name]
    return f"{words} {100 * value:.{digits}f} %" if share else f"{words} {value:.4f}"

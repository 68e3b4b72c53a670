"""Names and format of the metrics of all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Name in result.json: title, and the factor for display: accuracies in percent, a negated loss as a loss.
MEASURES = {
    "top1": ("top-1", 100), "top5": ("top-5", 100),
    "miou": ("mIoU", 100), "pixel_accuracy": ("pixel accuracy", 100), "mean_accuracy": ("mean class accuracy", 100),
    "accuracy": ("soft accuracy", 100),
    "loss": ("loss", 1), "neg_loss": ("loss", -1),
}  # fmt: skip


def format_metrics(values: Mapping[str, Any], digits: int = 2) -> str:
    """Format the metrics of a result, or the val_ entries of metrics.jsonl: `top-1 33.10 %, loss 1.8000`."""
    metrics = ((name, values.get(name, values.get(f"val_{name}"))) for name in MEASURES)
    return ", ".join(_format(name, value, digits) for name, value in metrics if value is not None)


def _format(name: str, value: float, digits: int) -> str:
    title, factor = MEASURES[name]
    return f"{title} {factor * value:.{digits}f} %" if factor == 100 else f"{title} {factor * value:.4f}"

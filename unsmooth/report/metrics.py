"""Metrics of runs and of papers: label, unit, decimals, and how two values are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple


class Metric(NamedTuple):
    """How a metric is shown.

    Attributes:
        label: Name in tables.
        unit: Unit after scaling by `factor`, or "".
        decimals: Decimals in tables of papers.
        comparison: "difference", or "ratio" for values that depend on the machine.
        factor: Factor from the stored value to the unit.
        counted: Whether it is a count on the model, which has no spread.
    """

    label: str
    unit: str
    decimals: int
    comparison: Literal["difference", "ratio"] = "difference"
    factor: float = 1.0
    counted: bool = False

    @property
    def title(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit else self.label


# Metrics of training runs, by name.
SCORES = {
    "top1": Metric("top-1", "%", 1, factor=100),
    "top5": Metric("top-5", "%", 1, factor=100),
    "miou": Metric("mIoU", "%", 1, factor=100),
    "pixel_accuracy": Metric("pixel accuracy", "%", 1, factor=100),
    "mean_accuracy": Metric("mean class accuracy", "%", 1, factor=100),
    "accuracy": Metric("soft accuracy", "%", 1, factor=100),
    "loss": Metric("loss", "", 4),
    "neg_loss": Metric("loss", "", 4, factor=-1),
}

METRICS = {
    **SCORES,
    "top1_reported": Metric("top-1, as reported by its authors", "%", 1, factor=100),
    "occlusion": Metric("top-1, centre occluded", "%", 1, factor=100),
    "fgsm": Metric("top-1 under FGSM", "%", 1, factor=100),
    "imagenet_a": Metric("top-1 on ImageNet-A", "%", 1, factor=100),
    "imagenet_v2": Metric("top-1 on ImageNet-V2", "%", 1, factor=100),
    "imagenet_real": Metric("top-1 on ImageNet-ReaL", "%", 1, factor=100),
    "layers": Metric("layers", "", 0, counted=True),
    "parameters": Metric("parameters", "M", 2, factor=1e-6, counted=True),
    "macs": Metric("multiply-adds", "G", 2, factor=1e-9, counted=True),
    "added_flops": Metric("added operations", "M", 1, factor=1e-6, counted=True),
    "images_per_second": Metric("images/s", "", 0, "ratio"),
    "training_speed": Metric("images/s in training", "", 0, "ratio"),
    "days": Metric("days of training (measured: per million images)", "", 3, "ratio"),
    "energy": Metric("energy per image, fp32", "mJ", 3, "ratio"),
    "energy_int8": Metric("energy per image, int8", "mJ", 3, "ratio"),
}


def format_value(name: str, value: float | None) -> str:
    """A value that is in the unit of its metric."""
    if value is None:
        return "–"
    decimals = METRICS[name].decimals
    # Small hosts have a thousandth of the published operations, which two decimals do not show.
    return f"{value:.2g}" if decimals and 0 < abs(value) < 10**-decimals else f"{value:,.{decimals}f}"


def format_scores(values: Mapping[str, Any], decimals: int = 2) -> str:
    """The scores of a result or of an epoch: "top-1 33.10 %, loss 1.8000"."""
    known = ((name, values.get(name, values.get(f"val_{name}"))) for name in SCORES)
    return ", ".join(_score(SCORES[name], value, decimals) for name, value in known if value is not None)


def _score(metric: Metric, value: float, decimals: int) -> str:
    scaled = metric.factor * value
    return f"{metric.label} {scaled:.{decimals}f} %" if metric.unit == "%" else f"{metric.label} {scaled:.4f}"

"""The measures of the papers tables: title, digits and how two values are compared."""

from __future__ import annotations

from typing import NamedTuple


class Measure(NamedTuple):
    title: str
    digits: int
    how: str  # difference: in the measure's own unit; ratio: to the first arm, since machines differ
    factor: float = 1.0  # from the value as it is measured to the unit of the papers


MEASURES = {
    "top1": Measure("top-1, %", 1, "difference", 100),
    "top5": Measure("top-5, %", 1, "difference", 100),
    "occlusion": Measure("top-1, centre occluded, %", 1, "difference", 100),
    "fgsm": Measure("top-1 under FGSM, %", 1, "difference", 100),
    "imagenet_a": Measure("top-1 on ImageNet-A, %", 1, "difference", 100),
    "miou": Measure("mIoU, %", 1, "difference", 100),
    "accuracy": Measure("soft accuracy, %", 1, "difference", 100),
    "loss": Measure("loss", 4, "difference"),
    "parameters": Measure("parameters, M", 2, "difference", 1e-6),
    "macs": Measure("multiply-adds, G", 2, "difference", 1e-9),
    "images_per_second": Measure("images/s", 0, "ratio"),
    "training_speed": Measure("images/s in training", 0, "ratio"),
    "days": Measure("days of training (here: of a million images)", 3, "ratio"),
    "energy": Measure("energy in fp32, mJ an image", 3, "ratio"),
    "energy_int8": Measure("energy in int8, mJ an image", 3, "ratio"),
}


def written(name: str, value: float | None) -> str:
    """A value in the unit of the papers."""
    if value is None:
        return "–"
    digits = MEASURES[name].digits
    # A small host has a thousandth of the published operations, which two decimals do not show.
    return f"{value:.2g}" if digits and 0 < abs(value) < 10**-digits else f"{value:,.{digits}f}"

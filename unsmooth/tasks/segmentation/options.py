"""Options of the segmentation task: what a recipe does not cover, and what a saved segmenter is rebuilt from."""

from __future__ import annotations

from typing import Any, Literal

from unsmooth.utils.options import Amp, Device, option, options, to_json

CROP = 512  # default side of training crops


@options
class SegmentationOptions:
    """Options of the segmentation task (`--option NAME=VALUE`)."""

    label = "segmentation"

    head: Literal["upernet"] = option("segmentation head (Hugging Face's UperNet)", default="upernet")
    classes: int = option("number of classes", default=150, low=2)
    hidden: int = option("channels of the head; the auxiliary head has half as many", default=512, low=2)
    auxiliary: float = option("loss weight of the auxiliary head; 0: no auxiliary head", default=0.4, low=0)
    crop: int = option("side of training crops and of windows; 0: the spec's img_size, or 512", default=0, low=0)
    short: int = option("length that the shorter image side is resized to; 0: the crop", default=0, low=0)
    smallest: float = option("lower end of the random resize factor in training", default=0.5, low=0.01)
    largest: float = option("upper end of the random resize factor in training", default=2.0, low=0.01)
    cat_max_ratio: float = option(
        "largest share of one class in a training crop (10 tries)", default=0.75, low=0.01, high=1
    )
    mode: Literal["slide", "whole"] = option(
        "evaluation: averaged sliding windows, or the whole image", default="slide"
    )
    reduce_zero_label: bool = option("treat annotation value 0 as unlabelled and 1 as the first class", default=True)
    ignore: int = option("annotation value of unlabelled pixels", default=255, low=0)

    def __post_init__(self) -> None:
        if self.smallest > self.largest:
            raise ValueError(f"smallest must be at most largest, {self.largest:g} (got {self.smallest:g})")

    @property
    def window(self) -> int:
        """Side of a crop; available once the options have been resolved for a spec."""
        assert self.crop and self.short
        return self.crop

    def to_json(self) -> dict[str, Any]:
        """Options as plain JSON values."""
        return to_json(self)


@options
class EvaluateSegmentationSettings:
    """Images and settings of the evaluation of a segmenter."""

    label = "evaluate_segmentation"

    split: Literal["train", "val"] = option("split of the data", default="val")
    limit: int = option("maximum number of images, evenly spaced; 0: all", default=0, low=0)
    workers: int = option("worker processes that load images", default=0, low=0)
    device: Device | None = option("device (default: that of the model; for a folder, cuda if available)", default=None)
    amp: Amp = option("precision of autocast", default="none")
    strict: bool = option("raise on a broken image instead of skipping it", default=False)

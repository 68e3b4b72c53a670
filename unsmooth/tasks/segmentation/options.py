"""Options of the segmentation task: what a recipe does not cover, and what a saved segmenter is rebuilt from."""

from __future__ import annotations

from typing import Any, Literal

from unsmooth.utils.options import option, options, to_json

CROP = 512  # default side of training crops


@options
class SegmentationOptions:
    """Options of the segmentation task (`--option NAME=VALUE`)."""

    label = "segmentation"

    head: Literal["upernet"] = option("upernet", "segmentation head (Hugging Face's UperNet)")
    classes: int = option(150, "number of classes", low=2)
    hidden: int = option(512, "channels of the head; the auxiliary head has half as many", low=2)
    auxiliary: float = option(0.4, "loss weight of the auxiliary head; 0: no auxiliary head", low=0)
    crop: int = option(0, "side of training crops and of windows; 0: the spec's img_size, or 512", low=0)
    short: int = option(0, "length that the shorter image side is resized to; 0: the crop", low=0)
    smallest: float = option(0.5, "lower end of the random resize factor in training", low=0.01)
    largest: float = option(2.0, "upper end of the random resize factor in training", low=0.01)
    cat_max_ratio: float = option(0.75, "largest share of one class in a training crop (10 tries)", low=0.01, high=1)
    mode: Literal["slide", "whole"] = option("slide", "evaluation: averaged sliding windows, or the whole image")
    reduce_zero_label: bool = option(True, "treat annotation value 0 as unlabelled and 1 as the first class")
    ignore: int = option(255, "annotation value of unlabelled pixels", low=0)

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

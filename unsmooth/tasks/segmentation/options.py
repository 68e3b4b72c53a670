"""The words of the task: what is no matter of a recipe, and what a saved segmenter is built and eval_model by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from unsmooth.errors import UnsmoothError
from unsmooth.remedies.base import Option
from unsmooth.tasks import options

TASK = "segmentation"
CROP = 512  # the side of training crops where neither the spec nor the recipe nor an option says one
OPTIONS = {
    "head": Option("upernet", "Hugging Face's UperNet", choices=("upernet",)),
    "classes": Option(150, "classes of the data", low=2),
    "hidden": Option(512, "channels of the head; the auxiliary one has half of them", low=2),
    "auxiliary": Option(0.4, "weight of the auxiliary head's loss; 0: no such head", low=0),
    "crop": Option(0, "side of a training crop and of a window; 0: the spec's img_size, or 512", low=0),
    "short": Option(0, "shorter side that pictures are brought to; 0: the crop", low=0),
    "smallest": Option(0.5, "in training, random share of `short`, from", low=0.01),
    "largest": Option(2.0, "and to", low=0.01),
    "cat_max_ratio": Option(0.75, "largest share of one class in a training crop, tried ten times", low=0.01, high=1),
    "mode": Option("slide", "evaluation: windows of the crop's size, averaged, or whole", choices=("slide", "whole")),
    "reduce_zero_label": Option(True, "0 in an annotation is no class, and 1 is the first one"),
    "ignore": Option(255, "this value in an annotation is no class either", low=0),
}


@dataclass(frozen=True)
class Options:
    head: str = OPTIONS["head"].default
    classes: int = OPTIONS["classes"].default
    hidden: int = OPTIONS["hidden"].default
    auxiliary: float = OPTIONS["auxiliary"].default
    crop: int = OPTIONS["crop"].default
    short: int = OPTIONS["short"].default
    smallest: float = OPTIONS["smallest"].default
    largest: float = OPTIONS["largest"].default
    cat_max_ratio: float = OPTIONS["cat_max_ratio"].default
    mode: str = OPTIONS["mode"].default
    reduce_zero_label: bool = OPTIONS["reduce_zero_label"].default
    ignore: int = OPTIONS["ignore"].default

    def __post_init__(self) -> None:
        if self.smallest > self.largest:
            raise UnsmoothError(f"option smallest ({self.smallest}) must not be above largest ({self.largest})")

    @property
    def window(self) -> int:
        """The side of a crop; known once the options were resolved for a spec."""
        assert self.crop and self.short
        return self.crop

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_options(given: Mapping[str, Any]) -> Options:
    """Options from words by name: text is read as the option's type."""
    return Options(**options.read_options(TASK, given, OPTIONS))

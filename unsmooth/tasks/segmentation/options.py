"""The words of the task: what is no matter of a recipe, and what a saved segmenter is built and judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from unsmooth.errors import UnsmoothError, unknown

CROP = 512  # the side of training crops where neither the spec nor the recipe nor an option says one


def word(default: Any, help: str, low: float, high: float = float("inf")) -> Any:
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True)
class Options:
    head: str = word("upernet", "upernet: Hugging Face's UperNet", 0)
    classes: int = word(150, "classes of the data", 2)
    hidden: int = word(512, "channels of the head; the auxiliary one has half of them", 2)
    auxiliary: float = word(0.4, "weight of the auxiliary head's loss; 0: no such head", 0)
    crop: int = word(0, "side of a training crop and of a window; 0: the spec's img_size, or 512", 0)
    short: int = word(0, "shorter side that pictures are brought to; 0: the crop", 0)
    smallest: float = word(0.5, "in training, random share of `short`, from", 0.01)
    largest: float = word(2.0, "and to", 0.01)
    cat_max_ratio: float = word(0.75, "largest share of one class in a training crop, tried ten times", 0.01, 1)
    mode: str = word("slide", "evaluation: slide (windows of the crop's size, averaged) or whole", 0)
    reduce_zero_label: bool = word(True, "0 in an annotation is no class, and 1 is the first one", 0)
    ignore: int = word(255, "this value in an annotation is no class either", 0)

    def __post_init__(self) -> None:
        for name, known in (("head", ("upernet",)), ("mode", ("slide", "whole"))):
            if getattr(self, name) not in known:
                raise unknown(f"value of option {name}", getattr(self, name), known)
        for option in fields(self):
            value, low, high = getattr(self, option.name), option.metadata["low"], option.metadata["high"]
            if not isinstance(value, str) and not low <= value <= high:
                most = "" if high == float("inf") else f" and at most {high}"
                raise UnsmoothError(f"option {option.name} must be at least {low}{most}, not {value}")
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
    known = {option.name: str(option.type) for option in fields(Options)}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise unknown("option of segmentation", name, known)
        found[name] = _read(name, known[name], value)
    return Options(**found)


def _read(name: str, kind: str, value: Any) -> Any:
    text = str(value).strip()
    try:
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        return {"int": int, "float": float, "str": str}[kind](text)
    except (KeyError, ValueError):
        words = {"bool": "true or false", "int": "a whole number", "float": "a number"}[kind]
        raise UnsmoothError(f"option {name} must be {words}, not {text!r}") from None

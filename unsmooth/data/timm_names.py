"""Data sets by timm's names, PREFIX/NAME@SPLIT: torchvision's and Hugging Face's by place, the others as streams.

timm spells the names and finds the files of torchvision's sets and of shards. Images are decoded here, not by timm's
readers: those hand out another image, with its label, where one is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from unsmooth.data.images import read_picture, whole
from unsmooth.errors import UnsmoothError

Opened = TypeVar("Opened")


@dataclass(frozen=True)
class DataName:
    """A data string, taken apart: hfids/imagenet-1k@train|1281167|1000."""

    text: str
    prefix: str
    name: str
    split: str  # "": not given
    count: int  # of images; 0: not given
    classes: int  # the same


def parse_name(text: str) -> DataName:
    rest, *numbers = text.split("|")
    if len(numbers) > 2 or not all(number == "" or number.isdecimal() for number in numbers):
        raise UnsmoothError(
            f"{text}: behind | stand the numbers of images and of classes, NAME|50000|1000 or NAME||1000"
        )
    count, classes = [int(number or 0) for number in (*numbers, "", "")[:2]]
    prefix, _, rest = rest.partition("/")
    name, _, split = rest.partition("@")
    return DataName(text, prefix, name, split, count, classes)


def opened(text: str, build: Callable[[], Opened]) -> Opened:
    """What `build` gives; every library has its own errors for what it cannot open."""
    try:
        return build()
    except UnsmoothError:
        raise
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnsmoothError(f"timm cannot open the data set {text!r}: {first[:300]}") from error


def columns(text: str, features: Any) -> tuple[str, str | None, tuple[str, ...]]:
    """The columns of images and of labels in a table of Hugging Face, and the names of the classes."""
    from datasets import ClassLabel, Image, Value

    def choose(kind: Any, usual: str) -> str | None:
        fit = [name for name, feature in features.items() if isinstance(feature, kind)]
        return usual if usual in fit else fit[0] if len(fit) == 1 else None

    image = choose(Image, "image")
    if image is None:
        raise UnsmoothError(
            f"{text} has no column `image` and no other single one of images, but {', '.join(features)}"
        )
    label = choose(ClassLabel, "label")
    if label is not None:
        return image, label, tuple(features[label].names)
    plain = features.get("label")
    whole_number = isinstance(plain, Value) and plain.dtype.startswith(("int", "uint"))
    return image, "label" if whole_number else None, ()


def hf_picture(found: dict[str, Any]) -> Image.Image:
    """A picture from a column that is not decoded."""
    if found.get("bytes") is not None:
        return read_picture(found["bytes"])
    if "://" in found["path"]:  # of files that are fetched one by one
        from datasets import Image as Decoder

        return whole(lambda: Decoder().decode_example(found))
    return read_picture(Path(found["path"]))

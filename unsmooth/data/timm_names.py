"""timm dataset names, PREFIX/NAME@SPLIT, and helpers to open them.

timm finds the files of torchvision datasets and of shards. Images are decoded here, since timm's readers silently
return another image, with its label, in place of a broken one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from unsmooth.data.images import decode_image, read_image
from unsmooth.errors import UnsmoothError, first_line

T = TypeVar("T")


@dataclass(frozen=True)
class DataName:
    """Parsed name, for instance hfids/imagenet-1k@train|1281167|1000."""

    text: str
    prefix: str
    name: str
    split: str  # "" if not given
    count: int  # of images; 0 if not given
    classes: int  # 0 if not given


def parse_name(text: str) -> DataName:
    """Parse PREFIX/NAME@SPLIT|IMAGES|CLASSES."""
    rest, *numbers = text.split("|")
    if len(numbers) > 2 or not all(number == "" or number.isdecimal() for number in numbers):
        raise UnsmoothError(
            f"{text}: invalid numbers after |. Use NAME|IMAGES|CLASSES, as in NAME|50000|1000 or NAME||1000"
        )
    count, classes = [int(number or 0) for number in (*numbers, "", "")[:2]]
    prefix, _, rest = rest.partition("/")
    name, _, split = rest.partition("@")
    return DataName(text, prefix, name, split, count, classes)


def open_or_raise(text: str, build: Callable[[], T]) -> T:
    """Result of `build`, with the errors of any library turned into `UnsmoothError`."""
    try:
        return build()
    except UnsmoothError:
        raise
    except Exception as error:
        raise UnsmoothError(f"timm cannot open the dataset {text!r}: {first_line(error)[:300]}") from error


def find_columns(text: str, features: Any) -> tuple[str, str | None, tuple[str, ...]]:
    """Image column, label column and class names of a Hugging Face table."""
    from datasets import ClassLabel, Image, Value

    def find(kind: Any, default: str) -> str | None:
        names = [name for name, feature in features.items() if isinstance(feature, kind)]
        return default if default in names else names[0] if len(names) == 1 else None

    image = find(Image, "image")
    if image is None:
        raise UnsmoothError(
            f"{text} has no column `image` and not exactly one image column (got {', '.join(features)})"
        )
    label = find(ClassLabel, "label")
    if label is not None:
        return image, label, tuple(features[label].names)
    feature = features.get("label")
    is_integer = isinstance(feature, Value) and feature.dtype.startswith(("int", "uint"))
    return image, "label" if is_integer else None, ()


def read_hf_image(cell: dict[str, Any]) -> Image.Image:
    """Decode a cell of an image column."""
    if cell.get("bytes") is not None:
        return read_image(cell["bytes"])
    if "://" in cell["path"]:  # files that are fetched one by one
        from datasets import Image as Decoder

        return decode_image(lambda: Decoder().decode_example(cell))
    return read_image(Path(cell["path"]))

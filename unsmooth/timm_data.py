"""Data sets by timm's names, PREFIX/NAME@SPLIT: torchvision's and Hugging Face's by place, the others as streams.

timm spells the names and finds the files of torchvision's sets and of shards. Images are decoded here, not by timm's
readers: those hand out another image, with its label, where one is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from unsmooth.data import Images, Source, read_picture, whole
from unsmooth.errors import UnsmoothError

NEEDS = {  # by prefix: a package, how to get it
    "torch": ("torchvision", "pip install torchvision"),
    "hfds": ("datasets", "pip install datasets"),
    "hfids": ("datasets", "pip install datasets"),
    "wds": ("webdataset", "pip install webdataset"),
    "tfds": ("tensorflow_datasets", "pip install tensorflow-cpu tensorflow-datasets"),
}
ROOTED = {  # those that have no place of their own: what --data-dir is to be
    "torch": "the folder that torchvision put it into",
    "wds": "the folder or address of the shards",
}
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


def open_timm(text: str, root: str | Path | None = None) -> Source:
    """A data set by timm's name for it."""
    from unsmooth import streams  # it is built on this file

    wanted = parse_name(text)
    package, remedy = NEEDS[wanted.prefix]
    if find_spec(package) is None:
        raise UnsmoothError(f"{text} needs the package {package}, which is not here: {remedy}")
    if root is None and wanted.prefix in ROOTED:
        raise UnsmoothError(f"{text}: give {ROOTED[wanted.prefix]} with --data-dir")
    openers: dict[str, Callable[[DataName, str | None], Source]] = {
        "torch": _torchvision, "hfds": _hugging_face, "wds": streams.shards, "hfids": streams.hugging_face,
        "tfds": streams.tensorflow,
    }  # fmt: skip
    return openers[wanted.prefix](wanted, None if root is None else str(root))


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


def _torchvision(wanted: DataName, root: str | None) -> Images:
    from timm import data

    assert root is not None
    dataset: Any = opened(
        wanted.text,
        lambda: data.create_dataset(f"torch/{wanted.name}", root, wanted.split or "validation", download=False),
    )
    if wanted.name in ("image_folder", "folder") and wanted.split and Path(dataset.root) == Path(root):
        # timm then takes the whole folder, with the names of its splits as classes.
        raise UnsmoothError(f"{wanted.text}: {root} has no folder {wanted.split}")
    classes = tuple(c if isinstance(c, str) else ", ".join(c) for c in _names(dataset))
    files = getattr(dataset, "samples", None) or getattr(dataset, "imgs", None)
    if files and isinstance(files[0][0], str):
        top = Path(dataset.root)
        marks = np.array([label for _, label in files])

        def item(i: int) -> str:
            path = Path(files[i][0])
            return path.relative_to(top).as_posix() if path.is_relative_to(top) else str(path)

        return Images(wanted.text, len(files), lambda i: read_picture(Path(files[i][0])), item, lambda i: int(marks[i]),
                      classes)  # fmt: skip

    def picture(i: int) -> Image.Image:
        return whole(lambda: dataset[i][0])

    return Images(wanted.text, len(dataset), picture, lambda i: f"{wanted.text}[{i}]", _targets(dataset), classes)


def _names(dataset: Any) -> Iterable[Any]:
    return getattr(dataset, "classes", None) or getattr(dataset, "all_categories", None) or ()


def _targets(dataset: Any) -> Callable[[int], int]:
    """The labels of a data set of torchvision, from where it keeps them."""
    kept = getattr(dataset, "targets", None)
    if kept is not None:
        marks = np.asarray(kept)
        marks = marks if marks.ndim == 1 else marks[:, 0]  # QMNIST keeps more about each digit; its class is first
        return lambda i: int(marks[i])
    if getattr(dataset, "target_type", None) == ["full"]:  # iNaturalist
        index = dataset.index
        return lambda i: int(index[i][0])
    return lambda i: int(dataset[i][1])  # reads the image too: there is no other way


def _hugging_face(wanted: DataName, root: str | None) -> Images:
    import datasets

    split = wanted.split or "validation"
    table: Any = opened(wanted.text, lambda: datasets.load_dataset(wanted.name, split=split, cache_dir=root))
    image, label, classes = columns(wanted.text, table.features)
    table = table.cast_column(image, datasets.Image(decode=False))
    marks = None if label is None else np.asarray(table[label][:])

    def item(i: int) -> str:
        path = table[i][image]["path"]
        return f"{wanted.text}[{i}]" + (f" ({Path(path).name})" if path else "")

    return Images(
        wanted.text, len(table), lambda i: hf_picture(table[i][image]), item,
        None if marks is None else lambda i: int(marks[i]), classes,
    )  # fmt: skip


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

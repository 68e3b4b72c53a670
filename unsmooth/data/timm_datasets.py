"""Data sets by their timm names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unsmooth.data import streams
from unsmooth.data.images import Images, Source, read_picture, whole
from unsmooth.data.timm_names import DataName, columns, hf_picture, opened, parse_name
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


def open_timm(text: str, root: str | Path | None = None) -> Source:
    """A data set by timm's name for it."""
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

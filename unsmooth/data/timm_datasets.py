"""timm datasets with random access: those of torchvision and of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unsmooth.data import streams
from unsmooth.data.images import Images, ImageSource, decode_image, read_image
from unsmooth.data.timm_names import DataName, find_columns, open_or_raise, parse_name, read_hf_image
from unsmooth.errors import UnsmoothError

PACKAGES = {  # by prefix: optional package, and what to install
    "hfds": ("datasets", "'unsmooth[data]'"),
    "hfids": ("datasets", "'unsmooth[data]'"),
    "wds": ("webdataset", "'unsmooth[data]'"),
    "tfds": ("tensorflow_datasets", "tensorflow-cpu tensorflow-datasets"),  # no extra: wheels differ by platform
}
ROOTS = {  # by prefix: what --data-dir must be, for datasets without a default location
    "torch": "the folder of the torchvision dataset",
    "wds": "the folder or URL of the shards",
}


def open_timm(text: str, root: str | Path | None = None) -> ImageSource:
    """Open a dataset by its timm name."""
    name = parse_name(text)
    package, install = PACKAGES.get(name.prefix, ("", ""))
    if package and find_spec(package) is None:
        raise UnsmoothError(f"{text} needs {package}. pip install {install}")
    if root is None and name.prefix in ROOTS:
        raise UnsmoothError(f"{text} needs data_dir (--data-dir): {ROOTS[name.prefix]}")
    openers: dict[str, Callable[[DataName, str | None], ImageSource]] = {
        "torch": _open_torchvision, "hfds": _open_hugging_face, "wds": streams.open_webdataset,
        "hfids": streams.open_hf_stream, "tfds": streams.open_tfds,
    }  # fmt: skip
    return openers[name.prefix](name, None if root is None else str(root))


def _open_torchvision(name: DataName, root: str | None) -> Images:
    from timm import data

    assert root is not None
    dataset: Any = open_or_raise(
        name.text,
        lambda: data.create_dataset(f"torch/{name.name}", root, name.split or "validation", download=False),
    )
    if name.name in ("image_folder", "folder") and name.split and Path(dataset.root) == Path(root):
        # timm would take the whole folder, with the names of its splits as classes.
        raise UnsmoothError(f"{name.text}: {root} has no folder {name.split}")
    classes = tuple(c if isinstance(c, str) else ", ".join(c) for c in _class_names(dataset))
    files = getattr(dataset, "samples", None) or getattr(dataset, "imgs", None)
    if files and isinstance(files[0][0], str):
        top = Path(dataset.root)
        labels = np.array([label for _, label in files])

        def item_name(i: int) -> str:
            path = Path(files[i][0])
            return path.relative_to(top).as_posix() if path.is_relative_to(top) else str(path)

        return Images(name.text, len(files), lambda i: read_image(Path(files[i][0])), item_name,
                      lambda i: int(labels[i]), classes)  # fmt: skip

    def load(i: int) -> Image.Image:
        return decode_image(lambda: dataset[i][0])

    return Images(name.text, len(dataset), load, lambda i: f"{name.text}[{i}]", _targets(dataset), classes)


def _class_names(dataset: Any) -> Iterable[Any]:
    return getattr(dataset, "classes", None) or getattr(dataset, "all_categories", None) or ()


def _targets(dataset: Any) -> Callable[[int], int]:
    """Label of image i of a torchvision dataset."""
    targets = getattr(dataset, "targets", None)
    if targets is not None:
        labels = np.asarray(targets)
        labels = labels if labels.ndim == 1 else labels[:, 0]  # QMNIST has several columns; the first is the class
        return lambda i: int(labels[i])
    if getattr(dataset, "target_type", None) == ["full"]:  # iNaturalist
        index = dataset.index
        return lambda i: int(index[i][0])
    return lambda i: int(dataset[i][1])  # decodes the image too, since there is no other way


def _open_hugging_face(name: DataName, root: str | None) -> Images:
    import datasets

    split = name.split or "validation"
    table: Any = open_or_raise(name.text, lambda: datasets.load_dataset(name.name, split=split, cache_dir=root))
    image, label, classes = find_columns(name.text, table.features)
    table = table.cast_column(image, datasets.Image(decode=False))
    labels = None if label is None else np.asarray(table[label][:])

    def item_name(i: int) -> str:
        path = table[i][image]["path"]
        return f"{name.text}[{i}]" + (f" ({Path(path).name})" if path else "")

    return Images(
        name.text, len(table), lambda i: read_hf_image(table[i][image]), item_name,
        None if labels is None else lambda i: int(labels[i]), classes,
    )  # fmt: skip

"""Open training and validation images by name.

    digits                 a fixed random fifth of the scans is for validation
    FOLDER                 train/ and val/ (or validation/, valid/, test/) with class folders in each
    FILE.npz               x_train, y_train, x_test, y_test (or val for test, images_ for x_, labels_ for y_)
    torch/…, hfds/…, …     the train and validation (or test) splits of a timm dataset

The validation images may have a name of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from unsmooth.data.images import Images, ImageSource, Stream, evenly_spaced, images_from_array, missing_count, subset
from unsmooth.data.sources import TIMM_PREFIXES, open_images, open_source, read_npz
from unsmooth.errors import UnsmoothError

VALIDATION = ("val", "validation", "valid", "test")
HELD_OUT = 0.2  # validation share of the bundled data


@dataclass(frozen=True)
class Splits:
    """Training and validation images with labels from 0 to `classes` − 1."""

    name: str
    train: ImageSource
    val: ImageSource
    classes: int


def open_splits(
    source: str | Path, val: str | Path | None = None, root: str | Path | None = None, classes: int | None = None
) -> Splits:
    """Open training and validation images and check their labels, without decoding images.

    Args:
        source: Name of the data.
        val: Name of the validation images, if they are not part of `source`.
        root: Folder of timm dataset files.
        classes: Number of classes (default: as specified by the data, or the highest label plus one).

    Returns:
        Both splits.

    Raises:
        UnsmoothError: If a split is missing, or if the labels are missing or inconsistent.
    """
    train, held = _open(str(source), val is None, root)
    if val is not None:
        held = open_source(val, root)
    assert held is not None
    for stream in (train, held):
        if isinstance(stream, Stream) and not stream.count:
            raise missing_count(stream)
    if classes is None and isinstance(train, Stream):
        classes = train.num_classes or None
    total = _classes(train, held, classes)
    return Splits(str(source), _with_classes(train, total), _with_classes(held, total), total)


def limit_splits(splits: Splits, train: int = 0, val: int = 0) -> Splits:
    """At most `train` and `val` images of the splits, evenly spaced; 0: all."""
    return replace(splits, train=_limit(splits.train, train), val=_limit(splits.val, val))


def hold_out(splits: Splits, share: float) -> Splits:
    """Splits of the training images alone: a fixed random share of every class becomes the validation images.

    Args:
        splits: Training and validation images; the latter are not used.
        share: Share of each class to hold out, at least one image of a class that has two.

    Raises:
        UnsmoothError: If the training images are a stream.
    """
    train = splits.train
    if isinstance(train, Stream):
        raise UnsmoothError(f"{train.name} is a stream: no images can be held out. Use a folder or an .npz file.")
    assert train.labels is not None
    labels = np.array([train.labels(i) for i in range(train.count)])
    generator = np.random.default_rng(0)
    held = np.zeros(train.count, dtype=bool)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        held[members[: max(round(share * len(members)), min(1, len(members) - 1))]] = True
    return replace(splits, train=subset(train, np.flatnonzero(~held)), val=subset(train, np.flatnonzero(held)))


def _limit(images: ImageSource, count: int) -> ImageSource:
    if not count or count >= images.count:
        return images
    if isinstance(images, Stream):
        raise UnsmoothError(f"{images.name} is a stream, which cannot be limited to {count} images. Use fewer shards.")
    return subset(images, evenly_spaced(images.count, count))


def _open(source: str, both: bool, root: str | Path | None) -> tuple[ImageSource, ImageSource | None]:
    path = Path(source)
    if source.startswith(TIMM_PREFIXES):
        return _timm(source, both, root)
    if source and path.is_dir():
        return _folder(path, both)
    if path.suffix == ".npz" and path.exists():
        return _npz(path, both)
    images = open_images(source, root)
    if not both:
        return images, None
    # Random, since the digits are in order: every fifth would mostly be 0 and 5.
    order = np.random.default_rng(0).permutation(images.count)
    held = round(HELD_OUT * images.count)
    return subset(images, np.sort(order[held:])), subset(images, np.sort(order[:held]))


def _folder(path: Path, both: bool) -> tuple[Images, Images | None]:
    train = path / "train"
    held = next((path / name for name in VALIDATION if (path / name).is_dir()), None)
    if not both:
        return open_images(train if train.is_dir() else path), None
    if not train.is_dir() or held is None:
        missing = "train" if not train.is_dir() else f"{VALIDATION[0]} (or {', '.join(VALIDATION[1:])})"
        raise UnsmoothError(
            f"the folder {path} has no split {missing}. Put class folders into {path / 'train'} and {path / 'val'}, or "
            "use val_data (--val-data)."
        )
    return open_images(train), open_images(held)


def _npz(path: Path, both: bool) -> tuple[Images, Images | None]:
    arrays = read_npz(path)
    if not both and ("images" in arrays or "x" in arrays):
        return open_images(path), None

    def split(names: tuple[str, ...]) -> Images | None:
        for name in names:
            for images, labels in ((f"x_{name}", f"y_{name}"), (f"images_{name}", f"labels_{name}")):
                if images in arrays:
                    return images_from_array(arrays[images], f"{path}:{images}", arrays.get(labels))
        return None

    train, held = split(("train",)), split(VALIDATION) if both else None
    if train is None or (both and held is None):
        raise UnsmoothError(
            f"{path} has no split {'train' if train is None else 'for validation'}: it holds {', '.join(arrays)}. "
            "Use x_train, y_train, x_test and y_test, or val_data (--val-data)."
        )
    return train, held


def _timm(source: str, both: bool, root: str | Path | None) -> tuple[ImageSource, ImageSource | None]:
    rest, _, number = source.partition("|")
    name, _, split = rest.partition("@")
    train = open_source(f"{name}@{split or 'train'}" + (f"|{number}" if number else ""), root)
    if not both:
        return train, None
    reasons = []
    for held in VALIDATION:
        try:
            return train, open_source(f"{name}@{held}", root)
        except UnsmoothError as error:
            reasons.append(str(error))
    raise UnsmoothError(
        f"{source} has no split for validation (tried {', '.join(VALIDATION)}). Use val_data (--val-data); {reasons[0]}"
    )


def _classes(train: ImageSource, held: ImageSource, given: int | None) -> int:
    """Number of classes; raises if the labels are missing or inconsistent."""
    for images, role in ((train, "training"), (held, "validation")):
        if not (images.labelled if isinstance(images, Stream) else images.labels):
            if len(images.classes) == 1:
                raise UnsmoothError(f"the {role} images of {images.name} have a single class, {images.classes[0]}")
            raise UnsmoothError(
                f"the {role} images of {images.name} have no labels. Use a folder per class, or labels in an .npz file."
            )
    if train.classes and held.classes and train.classes != held.classes:
        raise UnsmoothError(_class_difference(train, held))
    labels = _labels(train, given)
    if len(labels) < 2:
        raise UnsmoothError(
            f"the training images of {train.name} have a single class ({labels[0]}). Use at least two classes."
        )
    if labels[0] < 0:
        raise UnsmoothError(f"{train.name}: labels must start at 0 (got {labels[0]})")
    classes = given or len(train.classes) or labels[-1] + 1
    for images, role in ((train, "training"), (held, "validation")):
        readable = isinstance(images, Images) or images.read_labels is not None
        beyond = [label for label in _labels(images, given if readable else classes) if not 0 <= label < classes]
        if beyond:
            raise UnsmoothError(
                f"the {role} images of {images.name} have label {beyond[0]}, but there are {classes} classes "
                f"(0 to {classes - 1})"
            )
    return classes


def _class_difference(train: ImageSource, held: ImageSource) -> str:
    odd = sorted(set(train.classes) ^ set(held.classes))
    shown = f"only one has {', '.join(odd[:3])}{', …' if len(odd) > 3 else ''}" if odd else "in another order"
    return f"{train.name} has {len(train.classes)} classes and {held.name} {len(held.classes)}: {shown}"


def _with_classes(images: ImageSource, classes: int) -> ImageSource:
    """The number of classes lets a stream check its labels while it is read."""
    return replace(images, num_classes=classes) if isinstance(images, Stream) else images


def _labels(images: ImageSource, known: int | None) -> list[int]:
    """Sorted labels that occur; of a stream, those that are known without reading it."""
    if isinstance(images, Images):
        assert images.labels is not None
        return sorted({images.labels(i) for i in range(images.count)})
    known = known or len(images.classes)
    if not known and images.read_labels is None:
        raise UnsmoothError(
            f"{images.name} does not specify its number of classes. Add it after a second |, as in "
            f"{images.name}{'' if '|' in images.name else '|'}|1000"
        )
    return list(range(known)) if known or images.read_labels is None else sorted(images.read_labels())

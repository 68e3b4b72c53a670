"""Training and validation images by one name.

    digits                 a fifth of the scans, drawn once, validates
    FOLDER                 train/ and val/ (or validation/, valid/, test/) below it, with class folders in each
    FILE.npz               x_train, y_train, x_test, y_test (or val for test, images_ for x_, labels_ for y_)
    torch/…, hfds/…, …     the train and validation (or test) split of a data set of timm

A second name can give the validation images instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from unsmooth.data.images import Images, Source, Stream, chosen, of_array, spread, uncounted
from unsmooth.data.sources import TIMM_PREFIXES, open_images, open_source, read_npz
from unsmooth.errors import UnsmoothError

VALIDATION = ("val", "validation", "valid", "test")
HELD_OUT = 0.2  # of embedded data


@dataclass(frozen=True)
class Splits:
    name: str
    train: Source
    val: Source
    classes: int


def open_splits(
    source: str | Path, val: str | Path | None = None, root: str | Path | None = None, classes: int | None = None
) -> Splits:
    """The training and validation images that a name stands for, with their labels checked. Decodes no image.

    `classes`: how many there are, for data that does not say, or of which a part is used.
    """
    train, held = _open(str(source), val is None, root)
    if val is not None:
        held = open_source(val, root)
    assert held is not None
    for stream in (train, held):
        if isinstance(stream, Stream) and not stream.count:
            raise uncounted(stream)
    if classes is None and isinstance(train, Stream):
        classes = train.limit or None
    found = _classes(train, held, classes)
    return Splits(str(source), _limited(train, found), _limited(held, found), found)


def some_of(splits: Splits, train: int = 0, val: int = 0) -> Splits:
    """So many images of each, spread over the data; 0: all of them."""
    return replace(splits, train=_spread(splits.train, train), val=_spread(splits.val, val))


def _spread(images: Source, count: int) -> Source:
    if not count or count >= images.count:
        return images
    if isinstance(images, Stream):
        raise UnsmoothError(
            f"{images.name} is read from front to back, so no part of it can be chosen; name fewer shards"
        )
    return chosen(images, spread(images.count, count))


def _open(source: str, both: bool, root: str | Path | None) -> tuple[Source, Source | None]:
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
    # MaskedSample, since the digits were written in order: every fifth would be mostly 0 and 5.
    places = np.random.default_rng(0).permutation(images.count)
    held = round(HELD_OUT * images.count)
    return chosen(images, np.sort(places[held:])), chosen(images, np.sort(places[:held]))


def _folder(path: Path, both: bool) -> tuple[Images, Images | None]:
    train = path / "train"
    held = next((path / name for name in VALIDATION if (path / name).is_dir()), None)
    if not both:
        return open_images(train if train.is_dir() else path), None
    if not train.is_dir() or held is None:
        missing = "train" if not train.is_dir() else f"{VALIDATION[0]} (or {', '.join(VALIDATION[1:])})"
        raise UnsmoothError(
            f"the folder {path} has no split {missing}: put class folders into {path / 'train'} and {path / 'val'}, or "
            "name the validation images with --val-data"
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
                    return of_array(arrays[images], f"{path}:{images}", arrays.get(labels))
        return None

    train, held = split(("train",)), split(VALIDATION) if both else None
    if train is None or (both and held is None):
        raise UnsmoothError(
            f"{path} has no split {'train' if train is None else 'for validation'}: it holds {', '.join(arrays)}; "
            "expected x_train, y_train, x_test, y_test, or name the validation images with --val-data"
        )
    return train, held


def _timm(source: str, both: bool, root: str | Path | None) -> tuple[Source, Source | None]:
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
        f"{source} has no split for validation (tried {', '.join(VALIDATION)}): name one with --val-data; {reasons[0]}"
    )


def _classes(train: Source, held: Source, given: int | None) -> int:
    """How many classes there are, or why these labels cannot be learned."""
    for images, role in ((train, "training"), (held, "validation")):
        if not (images.labelled if isinstance(images, Stream) else images.labels):
            if len(images.classes) == 1:
                raise UnsmoothError(f"the {role} images of {images.name} have one class, {images.classes[0]}")
            raise UnsmoothError(
                f"the {role} images of {images.name} have no labels: give each class a folder, or an .npz file labels"
            )
    if train.classes and held.classes and train.classes != held.classes:
        raise UnsmoothError(_apart(train, held))
    found = _labels(train, given)
    if len(found) < 2:
        raise UnsmoothError(
            f"the training images of {train.name} have one class ({found[0]}); there is nothing to learn from them"
        )
    if found[0] < 0:
        raise UnsmoothError(f"{train.name}: labels must start at 0, and the smallest one is {found[0]}")
    classes = given or len(train.classes) or found[-1] + 1
    for images, role in ((train, "training"), (held, "validation")):
        readable = isinstance(images, Images) or images.found is not None
        beyond = [label for label in _labels(images, given if readable else classes) if not 0 <= label < classes]
        if beyond:
            raise UnsmoothError(
                f"the {role} images of {images.name} have the label {beyond[0]}, and there are {classes} classes "
                f"(0 to {classes - 1})"
            )
    return classes


def _apart(train: Source, held: Source) -> str:
    odd = sorted(set(train.classes) ^ set(held.classes))
    shown = f"only one has {', '.join(odd[:3])}{', …' if len(odd) > 3 else ''}" if odd else "in another order"
    return f"{train.name} has {len(train.classes)} classes and {held.name} {len(held.classes)}: {shown}"


def _limited(images: Source, classes: int) -> Source:
    """Labels of a stream that were not read are checked when they come."""
    return replace(images, limit=classes) if isinstance(images, Stream) else images


def _labels(images: Source, known: int | None) -> list[int]:
    """The labels that occur, in order; of a stream those that are known, since to read them takes long."""
    if isinstance(images, Images):
        assert images.labels is not None
        return sorted({images.labels(i) for i in range(images.count)})
    known = known or len(images.classes)
    if not known and images.found is None:
        raise UnsmoothError(
            f"{images.name} does not say how many classes it has: write their number behind a second |, as in "
            f"{images.name}{'' if '|' in images.name else '|'}|1000"
        )
    return list(range(known)) if known or images.found is None else sorted(images.found())

"""The images of each test, with labels that are indices of the model's classes. No image is read here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unsmooth.data.images import SUFFIXES, Images, Stream, as_images, evenly_spaced, subset
from unsmooth.data.sources import TIMM_PREFIXES, open_images, read_npz
from unsmooth.data.splits import VALIDATION, open_splits
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.label_sets import (
    CLASSES,
    check_imagenet_model,
    index_of_synset,
    relabel,
    subset_indices,
    with_imagenet_labels,
    with_real_labels,
)


@dataclass(frozen=True)
class Source:
    """Images to score a model on.

    `among`: the classes that an answer is chosen from. `accepted`: several right answers, by place. `index`: what the
    names of class folders stand for.
    """

    test: str
    images: Images
    among: tuple[int, ...] | None = None
    accepted: Sequence[frozenset[int]] | None = None
    index: Mapping[str, int] = field(default_factory=dict)

    def limited(self, limit: int | None) -> Source:
        """At most so many images, spread over the data, which is often sorted by class."""
        if limit is None or limit >= self.images.count:
            return self
        places = evenly_spaced(self.images.count, limit)
        accepted = None if self.accepted is None else [self.accepted[i] for i in places]
        return replace(self, images=subset(self.images, places), accepted=accepted)


def validation(source: str | Path | Images | Stream, classes: int, root: str | Path | None = None) -> Source:
    """The validation split of data if it has one, otherwise all of it. Labels of open data are taken as they are."""
    if isinstance(source, Images | Stream):
        images = as_images(source)
        _check_labels(images, classes)
        return Source("validation", images, index={name: i for i, name in enumerate(images.classes)})
    images, beside_training = _open(str(source), root)
    if images.labels is None:
        raise UnsmoothError(f"{images.name} has no labels: give each class a folder, or labels in the .npz file")
    names = images.classes
    if not names:
        _check_labels(images, classes)
        return Source("validation", images)
    if len(names) < classes == CLASSES and set(names) <= index_of_synset().keys():
        among = tuple(sorted(index_of_synset()[name] for name in names))
        return Source("validation", relabel(images, index_of_synset()), among, index=index_of_synset())
    if len(names) > classes or (len(names) < classes and not beside_training):
        raise UnsmoothError(
            f"{images.name} has {len(names)} class folders and the model {classes} classes, so their order says "
            f"nothing; give a folder for each class{', or name them by synset' if classes == CLASSES else ''}"
        )
    return Source("validation", images, index={name: i for i, name in enumerate(names)})


def imagenet_v2(folder: str | Path, classes: int) -> Source:
    check_imagenet_model(classes, "ImageNet-V2")
    return Source("imagenet-v2", with_imagenet_labels(_class_folders(folder)))


def imagenet_a(folder: str | Path, classes: int) -> Source:
    """ImageNet-A: the answer is chosen from its 200 classes."""
    check_imagenet_model(classes, "ImageNet-A")
    return Source(
        "imagenet-a", with_imagenet_labels(_class_folders(folder), "imagenet_a"), subset_indices("imagenet_a")
    )


def imagenet_r(folder: str | Path, classes: int) -> Source:
    """ImageNet-R: the answer is chosen from its 200 classes."""
    check_imagenet_model(classes, "ImageNet-R")
    return Source(
        "imagenet-r", with_imagenet_labels(_class_folders(folder), "imagenet_r"), subset_indices("imagenet_r")
    )


def real(folder: str | Path, classes: int) -> Source:
    """ImageNet's validation images with the labels of "Are we done with ImageNet?"."""
    check_imagenet_model(classes, "ReaL")
    images, accepted = with_real_labels(open_images(_folder(folder)))
    return Source("real", images, None, accepted)


def corrupted(folder: str | Path, classes: int, like: Source | None) -> list[Source]:
    """Folders of class folders, however deep: CLASS/…, CORRUPTION/CLASS/… or CORRUPTION/SEVERITY/CLASS/….

    Class folders are named as those of the validation images are (`like`), by synset, or by number.
    """
    top = _folder(folder)
    groups = sorted(
        {Path(at).parent for at, _, files in os.walk(top, followlinks=True) if any(_is_image(name) for name in files)}
    )
    inside = [group for group in groups if group == top or top in group.parents]
    if not inside or len(inside) < len(groups):
        raise UnsmoothError(f"{top} has no class folders with images: expected CORRUPTION/SEVERITY/CLASS/… or CLASS/…")
    found = []
    for group in inside:
        name = "/".join(("corrupted", *group.relative_to(top).parts))
        images = _class_folders(group)
        index = _index(images, classes, like)
        found.append(Source(name, relabel(images, index), like.among if like is not None and like.index else None))
    return found


def _index(images: Images, classes: int, like: Source | None) -> dict[str, int]:
    """What the class folders of a corrupted copy stand for."""
    names = images.classes
    if like is not None and like.index:
        index = dict(like.index)
    elif all(name.isdecimal() for name in names):
        index = {name: int(name) for name in names if int(name) < classes}
    else:
        index = index_of_synset() if classes == CLASSES else {}
    odd = [name for name in names if name not in index]
    if odd:
        raise UnsmoothError(
            f"{images.name}: the folder {odd[0]!r} is none of the model's {classes} classes; name class folders as "
            "those of the validation images are, or by number"
        )
    return index


def _open(source: str, root: str | Path | None) -> tuple[Images, bool]:
    """Images to validate on, and whether training images lie beside them, with the same classes."""
    path = Path(source)
    if source.startswith(TIMM_PREFIXES):
        return _open_timm(source, root), False
    if path.is_dir():
        held = next((path / name for name in VALIDATION if (path / name).is_dir()), None)
        if held is not None and not (path / "train").is_dir():
            return open_images(held), False
        return (open_images(path), False) if held is None else (as_images(open_splits(path).val), True)
    if path.suffix == ".npz" and path.exists():
        split = {f"{kind}_{name}" for kind in ("x", "images") for name in ("train", *VALIDATION)}
        several = len(split & read_npz(path).keys()) > 1
        return (as_images(open_splits(path).val), True) if several else (open_images(path), False)
    images = open_images(source, root)
    return images if images.labels is None else as_images(open_splits(source).val), False


def _open_timm(source: str, root: str | Path | None) -> Images:
    if "@" in source:
        return open_images(source, root)
    reasons = []
    for split in VALIDATION:
        try:
            return open_images(f"{source}@{split}", root)
        except UnsmoothError as error:
            reasons.append(str(error))
    raise UnsmoothError(f"{source} has no split for validation (tried {', '.join(VALIDATION)}): {reasons[0]}")


def _check_labels(images: Images, classes: int) -> None:
    """Refuse labels that the model has no class for, where they are known without reading images."""
    if images.labels is None:
        raise UnsmoothError(f"{images.name} has no labels: give each class a folder, or labels in the .npz file")
    if images.name.startswith(TIMM_PREFIXES):
        return
    wrong = next((label for label in map(images.labels, range(images.count)) if not 0 <= label < classes), None)
    if wrong is not None:
        raise UnsmoothError(
            f"{images.name} has the label {wrong}, and the model has {classes} classes (0 to {classes - 1}); "
            "give the spec the data's number of classes"
        )


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _folder(path: str | Path) -> Path:
    if not Path(path).is_dir():
        raise UnsmoothError(f"there is no folder {path}")
    return Path(path)


def _class_folders(path: str | Path) -> Images:
    images = open_images(_folder(path))
    if images.labels is None:
        raise UnsmoothError(f"{path} needs a folder for each class, at least two, and no images beside them")
    return images

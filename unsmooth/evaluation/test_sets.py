"""Test sets: images with labels that are class indices of the model. No image is read here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unsmooth.data.images import SUFFIXES, Images, Stream, evenly_spaced, subset
from unsmooth.data.random_access import as_images
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
class TestSet:
    """Images to score a model on.

    Attributes:
        name: Name of the test, such as "validation" or "imagenet-a".
        images: The images and their labels.
        among: Classes that predictions are restricted to. Default: all classes of the model.
        accepted: Accepted labels per image, where an image may have several.
        class_index: Class index by name of class folder.
        warning: Warning about its scores, such as classes that the model does not have; "" if there is none.
    """

    __test__ = False  # not a test case of pytest

    name: str
    images: Images
    among: tuple[int, ...] | None = None
    accepted: Sequence[frozenset[int]] | None = None
    class_index: Mapping[str, int] = field(default_factory=dict)
    warning: str = ""

    def subset(self, limit: int | None) -> TestSet:
        """At most `limit` images, evenly spaced, since data is often sorted by class."""
        if limit is None or limit >= self.images.count:
            return self
        indices = evenly_spaced(self.images.count, limit)
        accepted = None if self.accepted is None else [self.accepted[i] for i in indices]
        return replace(self, images=subset(self.images, indices), accepted=accepted)


def validation(data: str | Path | Images | Stream, classes: int, root: str | Path | None = None) -> TestSet:
    """The validation split of the data, or all of it if there are no splits. Labels of open data are not changed."""
    if isinstance(data, Images | Stream):
        images = as_images(data)
        warning = _check_labels(images, classes)
        index = {name: i for i, name in enumerate(images.classes)}
        return TestSet("validation", images, class_index=index, warning=warning)
    images, has_training_images = _open(str(data), root)
    if images.labels is None:
        raise UnsmoothError(f"{images.name} has no labels. Use one folder per class, or labels in the .npz file.")
    names = images.classes
    if not names:
        return TestSet("validation", images, warning=_check_labels(images, classes))
    if len(names) < classes == CLASSES and set(names) <= index_of_synset().keys():
        among = tuple(sorted(index_of_synset()[name] for name in names))
        return TestSet("validation", relabel(images, index_of_synset()), among, class_index=index_of_synset())
    if len(names) > classes or (len(names) < classes and not has_training_images):
        raise UnsmoothError(
            f"{images.name} has {len(names)} class folders and the model {classes} classes. Use one folder per class"
            f"{', or folders named by synset' if classes == CLASSES else ''}."
        )
    index = {name: i for i, name in enumerate(names)}
    return TestSet("validation", images, class_index=index, warning=_fewer_classes(len(names), classes))


def imagenet_v2(folder: str | Path, classes: int) -> TestSet:
    check_imagenet_model(classes, "ImageNet-V2")
    return TestSet("imagenet-v2", with_imagenet_labels(_class_folders(folder)))


def imagenet_a(folder: str | Path, classes: int) -> TestSet:
    """ImageNet-A: predictions are restricted to its 200 classes."""
    check_imagenet_model(classes, "ImageNet-A")
    return TestSet(
        "imagenet-a", with_imagenet_labels(_class_folders(folder), "imagenet_a"), subset_indices("imagenet_a")
    )


def imagenet_r(folder: str | Path, classes: int) -> TestSet:
    """ImageNet-R: predictions are restricted to its 200 classes."""
    check_imagenet_model(classes, "ImageNet-R")
    return TestSet(
        "imagenet-r", with_imagenet_labels(_class_folders(folder), "imagenet_r"), subset_indices("imagenet_r")
    )


def real(folder: str | Path, classes: int) -> TestSet:
    """ImageNet validation images with ReaL labels ("Are we done with ImageNet?")."""
    check_imagenet_model(classes, "ReaL")
    images, accepted = with_real_labels(open_images(_folder(folder)))
    return TestSet("real", images, None, accepted)


def corrupted(folder: str | Path, classes: int, validation: TestSet | None) -> list[TestSet]:
    """Corrupted copies, one test per folder of class folders: CLASS/…, CORRUPTION/CLASS/… or deeper.

    Class folders have the names of those of the validation images, or are named by synset or number.
    """
    top = _folder(folder)
    parents = sorted(
        {Path(path).parent for path, _, files in os.walk(top, followlinks=True) if any(map(_is_image, files))}
    )
    inside = [parent for parent in parents if parent == top or top in parent.parents]
    if not inside or len(inside) < len(parents):
        raise UnsmoothError(f"{top} has no class folders with images. Expected CORRUPTION/SEVERITY/CLASS/… or CLASS/….")
    sets = []
    for parent in inside:
        name = "/".join(("corrupted", *parent.relative_to(top).parts))
        images = _class_folders(parent)
        index = _class_index(images, classes, validation)
        among = validation.among if validation is not None and validation.class_index else None
        sets.append(TestSet(name, relabel(images, index), among))
    return sets


def _class_index(images: Images, classes: int, validation: TestSet | None) -> dict[str, int]:
    """Class index by class folder of a corrupted copy."""
    names = images.classes
    if validation is not None and validation.class_index:
        index = dict(validation.class_index)
    elif all(name.isdecimal() for name in names):
        index = {name: int(name) for name in names if int(name) < classes}
    else:
        index = index_of_synset() if classes == CLASSES else {}
    unknown_names = [name for name in names if name not in index]
    if unknown_names:
        raise UnsmoothError(
            f"{images.name}: the folder {unknown_names[0]!r} is none of the model's {classes} classes. Name class "
            "folders as those of the validation images, or by number."
        )
    return index


def _open(name: str, root: str | Path | None) -> tuple[Images, bool]:
    """Validation images, and whether the data also has training images of the same classes."""
    path = Path(name)
    if name.startswith(TIMM_PREFIXES):
        return _open_timm(name, root), False
    if path.is_dir():
        held_out = next((path / split for split in VALIDATION if (path / split).is_dir()), None)
        if held_out is not None and not (path / "train").is_dir():
            return open_images(held_out), False
        return (open_images(path), False) if held_out is None else (as_images(open_splits(path).val), True)
    if path.suffix == ".npz" and path.exists():
        keys = {f"{kind}_{split}" for kind in ("x", "images") for split in ("train", *VALIDATION)}
        several = len(keys & read_npz(path).keys()) > 1
        return (as_images(open_splits(path).val), True) if several else (open_images(path), False)
    images = open_images(name, root)
    return images if images.labels is None else as_images(open_splits(name).val), False


def _open_timm(name: str, root: str | Path | None) -> Images:
    if "@" in name:
        return open_images(name, root)
    reasons = []
    for split in VALIDATION:
        try:
            return open_images(f"{name}@{split}", root)
        except UnsmoothError as error:
            reasons.append(str(error))
    raise UnsmoothError(f"{name} has no validation split (tried {', '.join(VALIDATION)}): {reasons[0]}")


def _fewer_classes(known: int, classes: int) -> str:
    """A warning if the data has fewer classes than the model, whose numbers then need not mean the same."""
    if known >= classes:
        return ""
    return (
        f"the data has {known:,} classes and the model {classes:,}, so their class numbers need not mean the same. "
        f"Score a model that was trained on these classes (num_classes={known})."
    )


def _check_labels(images: Images, classes: int) -> str:
    """Check that the model has a class for each label, if labels are known without reading images.

    Returns:
        A warning if the data has fewer classes; "" if not.
    """
    if images.labels is None:
        raise UnsmoothError(f"{images.name} has no labels. Use one folder per class, or labels in the .npz file.")
    if images.name.startswith(TIMM_PREFIXES):
        return ""
    labels = {images.labels(i) for i in range(images.count)}
    wrong = next((label for label in labels if not 0 <= label < classes), None)
    if wrong is not None:
        raise UnsmoothError(
            f"{images.name} has the label {wrong}, and the model has {classes} classes (0 to {classes - 1}). "
            "Set num_classes in the spec to the number of classes of the data."
        )
    return _fewer_classes(len(images.classes) or max(labels, default=0) + 1, classes)


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _folder(path: str | Path) -> Path:
    if not Path(path).is_dir():
        raise UnsmoothError(f"there is no folder {path}.")
    return Path(path)


def _class_folders(path: str | Path) -> Images:
    images = open_images(_folder(path))
    if images.labels is None:
        raise UnsmoothError(f"{path} must have one folder per class, at least two, and no images next to them.")
    return images

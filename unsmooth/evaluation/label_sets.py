"""Class lists and label sets of ImageNet, from the files of timm."""

from __future__ import annotations

import pkgutil
import re
from dataclasses import replace
from functools import cache

from unsmooth.data.images import Images, subset
from unsmooth.errors import UnsmoothError

CLASSES = 1000
VALIDATION_IMAGES = 50_000
SYNSET = re.compile(r"n\d{8}")
VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\b")


@cache
def synsets(subset: str = "imagenet") -> tuple[str, ...]:
    """Synsets of ImageNet by class index, or of a subset: imagenet_a, imagenet_r."""
    text = pkgutil.get_data("timm.data", f"_info/{subset}_synsets.txt")
    assert text is not None
    return tuple(text.decode().split())


@cache
def index_of_synset() -> dict[str, int]:
    return {name: i for i, name in enumerate(synsets())}


def subset_indices(subset: str) -> tuple[int, ...]:
    return tuple(sorted(index_of_synset()[name] for name in synsets(subset)))


def relabel(images: Images, index: dict[str, int]) -> Images:
    """Images whose labels are `index[class name]`."""
    read, names = images.labels, images.classes
    assert read is not None and names
    return replace(images, labels=lambda i: index[names[read(i)]], classes=())


def with_imagenet_labels(images: Images, within: str = "imagenet") -> Images:
    """Images from class folders named by synset or by number (0 to 999), with ImageNet's class indices as labels.

    Folder 10 is class 10, although its name sorts before 2. `within` names the subset that all classes must be part of.
    """
    names = images.classes
    if not names:
        raise UnsmoothError(
            f"{images.name} has no class folders. Name them by synset (n01440764, …) or number (0 to 999)."
        )
    if all(name.isdecimal() and int(name) < CLASSES for name in names):
        allowed = set(subset_indices(within))
        index = {name: int(name) for name in names}
        outside = [name for name in names if int(name) not in allowed]
    else:
        index, allowed_names = index_of_synset(), set(synsets(within))
        outside = [name for name in names if name not in allowed_names]
    if outside:
        kind = "a synset of ImageNet-1k or a number from 0 to 999" if within == "imagenet" else f"a class of {within}"
        raise UnsmoothError(f"{images.name}: the folder {outside[0]!r} is not {kind}.")
    return relabel(images, index)


def check_imagenet_model(classes: int, test: str) -> None:
    if classes != CLASSES:
        raise UnsmoothError(f"{test} needs a model with ImageNet's {CLASSES} classes (got {classes}).")


@cache
def real_labels() -> dict[str, list[int]]:
    """ReaL labels by file name of the validation image. Some images have several labels, some none."""
    from timm.data import RealLabelsImagenet

    labels: dict[str, list[int]] = RealLabelsImagenet([""] * VALIDATION_IMAGES).real_labels
    return labels


def with_real_labels(images: Images) -> tuple[Images, list[frozenset[int]]]:
    """The images that have ReaL labels, and these labels by position. Labels are looked up by file name."""
    indices, accepted = [], []
    for i in range(images.count):
        name = images.item_name(i)
        match = VALIDATION_NAME.search(name.rsplit("/", 1)[-1])
        key = f"ILSVRC2012_val_{match[1]}.JPEG" if match else ""
        if key not in real_labels():
            raise UnsmoothError(
                f"{images.name}: {name!r} is not named as ImageNet's validation images are. ReaL labels need names "
                "such as ILSVRC2012_val_00000001.JPEG."
            )
        if labels := real_labels()[key]:
            indices.append(i)
            accepted.append(frozenset(labels))
    if not indices:
        raise UnsmoothError(f"none of the {images.count} images of {images.name} has a ReaL label.")
    return replace(subset(images, indices), labels=lambda i: min(accepted[i]), classes=()), accepted

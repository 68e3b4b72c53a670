"""Training and validation images by one name, from every kind of source; every mistake raises before any work."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unsmooth.data.images import ImageReadError, Images
from unsmooth.data.sources import open_images
from unsmooth.data.splits import Splits, limit_splits, open_splits
from unsmooth.errors import UnsmoothError

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 6, 6, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3
CLASSES = ("cat", "dog", "newt")


def folder(root: Path, split: str, classes: tuple[str, ...] = CLASSES, each: int = 2) -> Path:
    for number, name in enumerate(classes):
        (root / split / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            Image.fromarray(PIXELS[(number + 3 * i) % 12]).save(root / split / name / f"{i}.png")
    return root


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def labels(images: Any) -> list[int]:
    assert isinstance(images, Images) and images.labels is not None
    return [images.labels(i) for i in range(images.count)]


def check(splits: Splits, train: int, val: int, classes: int) -> None:
    assert (splits.train.count, splits.val.count, splits.classes) == (train, val, classes)
    for images in (splits.train, splits.val):
        assert set(labels(images)) <= set(range(classes))
        assert isinstance(images, Images)
        assert all(images.load(i).size and images.item_name(i) for i in range(images.count))


# Names


def test_digits_are_divided_and_nothing_is_in_both() -> None:
    splits = open_splits("digits")
    whole = open_images("digits")
    check(splits, 1438, 359, 10)
    assert isinstance(splits.train, Images) and isinstance(splits.val, Images)
    named = [{images.item_name(i) for i in range(images.count)} for images in (splits.train, splits.val)]
    assert not named[0] & named[1] and len(named[0] | named[1]) == whole.count
    assert min(np.bincount(labels(splits.val), minlength=10)) > 20, "the digits were written in order"
    assert [splits.val.item_name(i) for i in range(3)] == ["digits[2]", "digits[12]", "digits[13]"], (
        "recorded runs are compared on these"
    )


@pytest.mark.parametrize("held", ["val", "validation", "valid", "test"])
def test_folders(tmp_path: Path, held: str) -> None:
    folder(folder(tmp_path, "train", each=3), held)
    splits = open_splits(tmp_path)
    check(splits, 9, 6, 3)
    assert splits.train.classes == splits.val.classes == CLASSES
    assert labels(splits.train) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_linked_class_folders(tmp_path: Path) -> None:
    """A part of a dataset is often made of links."""
    folder(folder(tmp_path / "all", "train"), "val")
    for split in ("train", "val"):
        (tmp_path / "part" / split).mkdir(parents=True)
        for name in CLASSES[:2]:
            (tmp_path / "part" / split / name).symlink_to(tmp_path / "all" / split / name, target_is_directory=True)
    check(open_splits(tmp_path / "part"), 4, 4, 2)


def test_images_are_in_the_order_of_their_folders(tmp_path: Path) -> None:
    folder(tmp_path, "train", ("a", "a-b", "a.b"), each=1)
    images = open_images(tmp_path / "train")
    assert [images.item_name(i) for i in range(3)] == ["a/0.png", "a-b/0.png", "a.b/0.png"] and labels(images) == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("names", [("x_train", "y_train", "x_test", "y_test"), ("x_train", "y_train", "x_val", "y_val"),
                                   ("images_train", "labels_train", "images_test", "labels_test")])  # fmt: skip
def test_npz_files(tmp_path: Path, names: tuple[str, str, str, str]) -> None:
    arrays = (PIXELS[:8], LABELS[:8], PIXELS[8:], LABELS[8:])
    splits = open_splits(npz(tmp_path / "data.npz", **dict(zip(names, arrays, strict=True))))
    check(splits, 8, 4, 3)
    assert isinstance(splits.val, Images) and np.array_equal(np.asarray(splits.val.load(0)), PIXELS[8])


def test_validation_images_by_another_name(tmp_path: Path) -> None:
    train = npz(tmp_path / "train.npz", images=PIXELS, labels=LABELS)
    held = npz(tmp_path / "held.npz", x=PIXELS[:4], y=LABELS[:4])
    check(open_splits(train, held), 12, 4, 3)
    check(open_splits(folder(tmp_path / "folder", "train"), held), 6, 4, 3)
    check(open_splits(folder(tmp_path / "plain", ".", each=4), held), 12, 4, 3)
    check(open_splits("digits", npz(tmp_path / "more.npz", images=PIXELS, labels=LABELS)), 1797, 12, 10)


def test_classes_can_be_given(tmp_path: Path) -> None:
    file = npz(tmp_path / "a.npz", x_train=PIXELS, y_train=LABELS, x_test=PIXELS[:1], y_test=np.array([4]))
    assert open_splits(file, classes=5).classes == 5
    with pytest.raises(UnsmoothError, match=r"validation images .* have label 4, but there are 3 classes"):
        open_splits(file)
    with pytest.raises(UnsmoothError, match=r"training images .* have label 2, but there are 2 classes"):
        open_splits(file, classes=2)


def test_a_part_is_spread_over_the_data() -> None:
    splits = open_splits("digits")
    some = limit_splits(splits, 10, 3)
    assert (some.train.count, some.val.count, some.classes) == (10, 3, 10)
    assert isinstance(some.train, Images) and isinstance(splits.train, Images)
    wanted = [round(i * 1437 / 9) for i in range(10)]
    assert [some.train.item_name(i) for i in range(10)] == [splits.train.item_name(i) for i in wanted]
    assert labels(some.train) == [labels(splits.train)[i] for i in wanted]
    assert limit_splits(splits).train is splits.train and limit_splits(splits, 9999).train is splits.train


# Datasets of torchvision, by timm's names


def idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    """MNIST's format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def mnist(root: Path, name: str = "MNIST") -> None:
    for split, count in (("train", 9), ("t10k", 3)):
        idx(root / name / "raw" / f"{split}-images-idx3-ubyte", PIXELS[:count, :, :, 0])
        idx(root / name / "raw" / f"{split}-labels-idx1-ubyte", LABELS[:count])


@pytest.mark.parametrize(("name", "place"), [("torch/mnist", "MNIST"), ("torch/fashion_mnist", "FashionMNIST")])
def test_torchvision_arrays(tmp_path: Path, name: str, place: str) -> None:
    mnist(tmp_path, place)
    splits = open_splits(name, root=tmp_path)
    check(splits, 9, 3, 10)
    assert labels(splits.train) == LABELS[:9].tolist() and len(splits.train.classes) == 10
    assert isinstance(splits.train, Images) and np.array_equal(np.asarray(splits.train.load(4)), PIXELS[4, :, :, 0])
    assert open_images(f"{name}@train", tmp_path).count == 9 and open_images(name, tmp_path).count == 3


def test_torchvision_with_more_than_a_label(tmp_path: Path) -> None:
    """QMNIST keeps eight numbers about each digit; the class is the first."""
    raw = tmp_path / "QMNIST" / "raw"
    for split in ("train", "test"):
        idx(raw / f"qmnist-{split}-images-idx3-ubyte", PIXELS[:9, :, :, 0])
        facts = np.zeros((9, 8), dtype=">i4")
        facts[:, 0], facts[:, 1] = LABELS[:9], 7
        head = struct.pack(">HBB2I", 0, 12, 2, 9, 8)
        (raw / f"qmnist-{split}-labels-idx2-int").write_bytes(head + facts.tobytes())
        for kind in ("images-idx3-ubyte.gz", "labels-idx2-int.gz"):
            (raw / f"qmnist-{split}-{kind}").write_bytes(gzip.compress(b""))
    splits = open_splits("torch/qmnist", root=tmp_path)
    assert splits.train.count == 9 and labels(splits.train) == LABELS[:9].tolist()


def test_torchvision_image_folder(tmp_path: Path) -> None:
    folder(folder(tmp_path, "train", each=3), "val")
    (tmp_path / "train" / "cat" / "0.png").write_bytes(b"broken")
    splits = open_splits("torch/image_folder", root=tmp_path)
    assert (splits.train.count, splits.val.count, splits.classes, splits.train.classes) == (9, 6, 3, CLASSES)
    assert isinstance(splits.train, Images) and splits.train.item_name(0) == "cat/0.png"
    with pytest.raises(ImageReadError, match="not an image"):
        splits.train.load(0)


def test_torchvision_categories(tmp_path: Path) -> None:
    for version, count in (("2021_train", 3), ("2021_valid", 1)):
        for number in range(2):
            place = tmp_path / version / f"{number:05d}_Animalia_Chordata_Aves_Order_Family_Genus_species{number}"
            place.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(PIXELS[i]).save(place / f"{i}.jpg")
    splits = open_splits("torch/inaturalist", root=tmp_path)
    check(splits, 6, 2, 2)
    assert labels(splits.train) == [0, 0, 0, 1, 1, 1]


def test_labels_are_read_without_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist(tmp_path)
    folder(folder(tmp_path / "folder", "train"), "val")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an image was opened")

    monkeypatch.setattr(Image, "open", refuse)
    monkeypatch.setattr(Image, "fromarray", refuse)
    assert open_splits("torch/mnist", root=tmp_path).classes == 10
    assert open_splits("torch/image_folder", root=tmp_path / "folder").classes == 3
    assert open_splits(tmp_path / "folder").classes == 3


# Mistakes


def empty(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def arrays(**other: Any) -> dict[str, Any]:
    return {"x_train": PIXELS[:8], "y_train": LABELS[:8], "x_test": PIXELS[8:], "y_test": LABELS[8:]} | other


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no train folder": (lambda p: folder(p, "val"), r"has no split train\. Put class folders into .*train and .*val"),
    "no val folder": (lambda p: folder(p, "train"), r"has no split val \(or validation, valid, test\)"),
    "an empty folder": (empty, "has no split train"),
    "an empty split": (lambda p: empty(folder(p, "val") / "train").parent, "train holds no images"),
    "one class folder": (lambda p: folder(folder(p, "train", ("cat",)), "val", ("cat",)), "have a single class, cat"),
    "no class folders": (
        lambda p: folder(folder(p, "train", (".",)), "val", (".",)),
        r"have no labels\. Use a folder per class",
    ),
    "other classes": (
        lambda p: folder(folder(p, "train"), "val", ("cat", "dog", "newt", "owl")),
        "train has 3 classes and .*val 4: only one has owl",
    ),
    "a class too few": (lambda p: folder(folder(p, "train"), "val", ("cat", "dog")), "only one has newt"),
    "no arrays for training": (
        lambda p: npz(p, images=PIXELS, labels=LABELS),
        "has no split train: it holds images, la",
    ),
    "no arrays for validation": (
        lambda p: npz(p, x_train=PIXELS, y_train=LABELS),
        "no split for validation.*--val-data",
    ),
    "no training labels": (lambda p: npz(p, x_train=PIXELS, x_test=PIXELS), "the training images .* have no labels"),
    "no validation labels": (
        lambda p: npz(p, x_train=PIXELS, y_train=LABELS, x_test=PIXELS),
        "the validation images .* have no labels",
    ),
    "one class": (
        lambda p: npz(p, **arrays(y_train=LABELS[:8] * 0)),
        r"have a single class \(0\)",
    ),
    "labels below 0": (
        lambda p: npz(p, **arrays(y_train=LABELS[:8] - 1)),
        r"must start at 0 \(got -1\)",
    ),
    "labels beyond": (
        lambda p: npz(p, **arrays(y_test=LABELS[8:] + 5)),
        r"label 5, but there are 3 classes \(0 to 2\)",
    ),
    "validation labels below 0": (lambda p: npz(p, **arrays(y_test=LABELS[8:] - 1)), "have label -1"),
    "nothing there": (lambda p: p / "nowhere", "there are no images at"),
    "no name": (lambda p: "", "there are no images at ''"),
    "photographs": (lambda p: "photographs", "have no labels"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_data_that_cannot_be_learned(tmp_path: Path, kind: str) -> None:
    make, words = WRONG[kind]
    made = (
        make(tmp_path / "data.npz")
        if "arrays" in kind or "label" in kind or kind == "one class"
        else make(tmp_path / "d")
    )
    with pytest.raises(UnsmoothError, match=words) as error:
        open_splits(made)
    assert "\n" not in str(error.value)


TIMM_WRONG: dict[str, tuple[str, bool, str]] = {  # name, whether a root is given, what is said
    "no root": ("torch/mnist", False, "needs data_dir \\(--data-dir\\): the folder of the torchvision dataset"),
    "no files": ("torch/cifar10", True, "timm cannot open the dataset 'torch/cifar10@train'"),
    "unknown": ("torch/no_such", True, "cannot open .*no_such"),
    "no validation": ("torch/image_folder", True, "has no split for validation.*--val-data"),
    "no such split": ("torch/image_folder@part", True, "has no folder part"),
    "no number": ("wds/toy@train|many", True, r"invalid numbers after \|"),
}


@pytest.mark.parametrize("kind", TIMM_WRONG)
def test_data_of_timm_that_cannot_be_opened(tmp_path: Path, kind: str) -> None:
    name, rooted, words = TIMM_WRONG[kind]
    folder(tmp_path, "train")
    with pytest.raises(UnsmoothError, match=words) as error:
        open_splits(name, root=tmp_path if rooted else None)
    assert "\n" not in str(error.value)

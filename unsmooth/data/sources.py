"""Open images by name.

    digits            1,797 scans of 8 × 8 pixels with labels, from scikit-learn
    photographs       crops of the two photographs in scikit-learn
    FOLDER            every image in it, recursively; the names of class folders are the labels
    FILE.npz          `images`, uint8 (N, H, W, C) or (N, H, W), and optional `labels`; or x and y, x_test and y_test, …
    torch/…, hfds/…   timm datasets with random access: see `timm_datasets`
    wds/…, hfids/…, tfds/…    timm datasets that are streamed: see `streams`

Images are decoded on access.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unsmooth.data.images import SUFFIXES, Images, ImageSource, images_from_array, read_image
from unsmooth.data.random_access import as_images
from unsmooth.errors import UnsmoothError, first_line, printable

TIMM_PREFIXES = ("torch/", "hfds/", "hfids/", "wds/", "tfds/")
EMBEDDED = ("digits", "photographs")
NPZ_NAMES = (("images", "labels"), ("x", "y"), ("x_test", "y_test"), ("x_train", "y_train"))  # in order of priority
CROPS = 4  # crops along each side of a photograph


def open_images(source: str | Path, root: str | Path | None = None) -> Images:
    """Open images with random access.

    Args:
        source: Name of the images, as listed above.
        root: Folder of timm dataset files.

    Returns:
        The images. A stream is wrapped, so that random access to it is slow.

    Raises:
        UnsmoothError: If there are no images of that name.

    Example:
        >>> from unsmooth.data.sources import open_images
        >>> digits = open_images("digits")
        >>> digits.count, digits.load(0).size, digits.labels(0)
        (1797, (8, 8), 0)
    """
    return as_images(open_source(source, root))


def open_source(source: str | Path, root: str | Path | None = None) -> ImageSource:
    """Open images by name, like `open_images`; streams are returned as such."""
    text = str(source)
    if text == "digits":
        return _digits()
    if text == "photographs":
        return _photographs()
    if text.startswith(TIMM_PREFIXES):
        from unsmooth.data.timm_datasets import open_timm  # imports this module

        return open_timm(text, root)
    path = Path(source)
    if text and path.is_dir():
        return _folder(path)
    if path.suffix == ".npz" and path.exists():
        return _npz(path)
    if text and path.exists():
        raise UnsmoothError(f"{path} is neither a folder nor an .npz file. Use the folder that holds the images.")
    raise UnsmoothError(
        f"there are no images at {text!r}. Use a folder, an .npz file, a timm dataset "
        f"({', '.join(p + '…' for p in TIMM_PREFIXES)}), or one of {', '.join(EMBEDDED)}."
    )


def _folder(path: Path) -> Images:
    names = sorted(_files_below(path), key=lambda name: name.split(b"/"))
    if not names:
        raise UnsmoothError(f"the folder {path} holds no images (expected {', '.join(SUFFIXES)})")
    # Labels need every image to be in a class folder.
    tops = [name.rpartition(b"/")[0].split(b"/")[0] for name in names]
    labelled = all(tops)
    classes, labels = np.unique(np.array(tops, dtype=np.bytes_), return_inverse=True)
    # An array, since every worker would copy a list of strings (reference counts defeat copy-on-write).
    paths = np.array(names, dtype=np.bytes_)

    def file_name(i: int) -> str:
        return os.fsdecode(bytes(paths[i]))

    def item_name(i: int) -> str:
        return printable(file_name(i))

    return Images(printable(str(path)), len(names), lambda i: read_image(path / file_name(i)), item_name,
                  (lambda i: int(labels[i])) if labelled and len(classes) > 1 else None,
                  tuple(printable(os.fsdecode(bytes(name))) for name in classes) if labelled else ())  # fmt: skip


def _files_below(path: Path) -> Iterator[bytes]:
    """Paths of image files relative to a folder, as bytes with slashes; symbolic links are followed."""
    seen: set[tuple[int, int]] = set()  # folders, since links may lead back to a folder above them
    for folder, folders, names in os.walk(path, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        relative = Path(folder).relative_to(path).as_posix()
        for name in names:
            if name.lower().endswith(SUFFIXES):
                yield os.fsencode(name if relative == "." else f"{relative}/{name}")


def read_npz(path: Path) -> dict[str, Any]:
    """Arrays of an .npz file by name."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: np.asarray(file[key]) for key in file.files}
    except Exception as error:  # zip, header and pickle errors have no common base class
        raise UnsmoothError(f"cannot read {path}: {first_line(error)}") from error


def _npz(path: Path) -> Images:
    arrays = read_npz(path)
    pair = next((names for names in NPZ_NAMES if names[0] in arrays), None)
    if pair is None:
        raise UnsmoothError(f"{path} holds {', '.join(arrays) or 'nothing'}; expected `images` and optional `labels`")
    return images_from_array(arrays[pair[0]], printable(str(path)), arrays.get(pair[1]))


def _digits() -> Images:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return images_from_array((digits.images * 255 / 16).round().astype(np.uint8), "digits", digits.target)


def _photographs() -> Images:
    """Square crops of the two photographs, as large as the shorter side and half of it, evenly spaced."""
    from sklearn.datasets import load_sample_images

    data = load_sample_images()
    boxes = []
    for photo, pixels in enumerate(data.images):
        height, width = pixels.shape[:2]
        for side in (height, height // 2):
            rows = [0] if side == height else np.linspace(0, height - side, CROPS).round().astype(int)
            for top in rows:
                for left in np.linspace(0, width - side, CROPS).round().astype(int):
                    boxes.append((photo, int(left), int(top), int(left) + side, int(top) + side))

    def load(i: int) -> Image.Image:
        photo, *box = boxes[i]
        return Image.fromarray(data.images[photo]).crop(tuple(box))

    def item_name(i: int) -> str:
        photo, left, top, right, _ = boxes[i]
        return f"{Path(data.filenames[photo]).name} [{left}:{right}, {top}:]"

    return Images("photographs of scikit-learn", len(boxes), load, item_name)

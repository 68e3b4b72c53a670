"""Images by name: a folder, an .npz file, a data set that timm can read, or what scikit-learn's wheel contains.

    digits            1,797 scans of 8 × 8 pixels with labels, from scikit-learn
    photographs       crops of the two photographs in scikit-learn's wheel
    FOLDER            every image below it; the names of class folders are the labels
    FILE.npz          `images`, uint8 (N, H, W, C) or (N, H, W), and `labels` if there are any; or x and y, x_test, …
    torch/…, hfds/…, wds/…, tfds/…    any data string of timm

Nothing is read before it is asked for. An image that cannot be used says why, in words, by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from unsmooth.errors import UnsmoothError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
TIMM_PREFIXES = ("torch/", "hfds/", "hfids/", "wds/", "tfds/")
EMBEDDED = ("digits", "photographs")
NPZ_NAMES = (("images", "labels"), ("x", "y"), ("x_test", "y_test"), ("x_train", "y_train"))  # first found is taken
THINNEST = 50  # an image more than so many times as long as wide is a strip, not a picture
CROPS = 4  # crops along each side of a photograph


class BadImage(UnsmoothError):
    """An image that cannot be used, and why."""


@dataclass(frozen=True)
class Images:
    """A sequence of pictures that are read when asked for: `picture(i)` and, where there are any, `labels[i]`."""

    name: str
    count: int
    picture: Callable[[int], Image.Image]
    item: Callable[[int], str]
    labels: Callable[[int], int] | None = None
    classes: tuple[str, ...] = ()


def open_images(source: str | Path) -> Images:
    """The images that a name stands for."""
    text = str(source)
    if text == "digits":
        return _digits()
    if text == "photographs":
        return _photographs()
    if text.startswith(TIMM_PREFIXES):
        return _timm(text)
    path = Path(source)
    if text and path.is_dir():
        return _folder(path)
    if path.suffix == ".npz" and path.exists():
        return _npz(path)
    if text and path.exists():
        raise UnsmoothError(f"{path} is no folder and no .npz file; give the folder that holds the images")
    raise UnsmoothError(
        f"there are no images at {text!r}: give a folder, an .npz file, a data set of timm "
        f"({', '.join(p + '…' for p in TIMM_PREFIXES)}), or one of {', '.join(EMBEDDED)}"
    )


def of_array(array: Any, name: str, labels: Any = None) -> Images:
    """Images from an array of uint8, (N, H, W, C) or (N, H, W)."""
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3, 4)):
        raise UnsmoothError(
            f"{name}: images must be uint8 of shape (N, H, W, C) with 1, 3 or 4 channels, or (N, H, W); "
            f"these are {array.dtype} of shape {tuple(array.shape)}"
        )
    if not len(array):
        raise UnsmoothError(f"{name} holds no images")
    if labels is not None and (labels.shape != (len(array),) or not np.issubdtype(labels.dtype, np.integer)):
        raise UnsmoothError(
            f"{name}: labels must be whole numbers, one for each of {len(array)} images; these are {labels.dtype} "
            f"of shape {tuple(labels.shape)}"
        )

    def picture(i: int) -> Image.Image:
        pixels = array[i]
        return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)

    read = None if labels is None else lambda i: int(labels[i])
    return Images(name, len(array), picture, lambda i: f"{name}[{i}]", read)


def read_picture(path: Path) -> Image.Image:
    """A picture file as 8-bit: the first frame of an animation, 16-bit grey scaled down."""
    try:
        with Image.open(path) as file:
            file.seek(0)
            file.load()
            return eight_bit(file.copy())
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        empty = path.exists() and path.stat().st_size == 0
        known = isinstance(error, UnidentifiedImageError)
        reason = "the file is empty" if empty else "not an image that Pillow can read" if known else str(error)
        raise BadImage(reason) from error


def eight_bit(picture: Image.Image) -> Image.Image:
    """16-bit, 32-bit and floating-point grey as 8-bit grey; everything else as it is."""
    if picture.mode.startswith("I") or picture.mode == "F":
        pixels = np.asarray(picture).astype(np.float64)
        most = pixels.max(initial=0)
        deep = picture.mode.startswith("I;16") or most > 255
        top = 65535.0 if deep else 1.0 if picture.mode == "F" and most <= 1 else 255.0
        return Image.fromarray((pixels.clip(0, top) / top * 255).round().astype(np.uint8))
    return picture


def for_host(picture: Image.Image, channels: int) -> Image.Image:
    """A picture with the number of channels that a host takes; transparency lies on white."""
    width, height = picture.size
    if min(width, height) < 2 or max(width, height) > THINNEST * min(width, height):
        raise BadImage(f"{width} × {height} pixels is a strip, not a picture")
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert({1: "L", 3: "RGB"}[channels])


def _folder(path: Path) -> Images:
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not files:
        raise UnsmoothError(f"the folder {path} holds no images (looked for {', '.join(SUFFIXES)})")
    # Images in the folder itself have no class; a label needs every image to have one.
    inside = [p.relative_to(path).parts for p in files]
    classes = sorted({parts[0] for parts in inside if len(parts) > 1})
    known = len(classes) > 1 and all(len(parts) > 1 for parts in inside)
    places = {name: i for i, name in enumerate(classes)}
    labels = (lambda i: places[inside[i][0]]) if known else None
    return Images(str(path), len(files), lambda i: read_picture(files[i]), lambda i: "/".join(inside[i]), labels,
                  tuple(classes) if known else ())  # fmt: skip


def _npz(path: Path) -> Images:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: np.asarray(file[key]) for key in file.files}
    except Exception as error:  # zip, header and pickle errors have no common class
        raise UnsmoothError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    pair = next((names for names in NPZ_NAMES if names[0] in arrays), None)
    if pair is None:
        raise UnsmoothError(f"{path} holds {', '.join(arrays) or 'nothing'}; expected `images`, and `labels` if any")
    return of_array(arrays[pair[0]], str(path), arrays.get(pair[1]))


def _digits() -> Images:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return of_array((digits.images * 255 / 16).round().astype(np.uint8), "digits", digits.target)


def _photographs() -> Images:
    """Square crops of the two photographs: a half and the whole of the shorter side, at evenly spaced places."""
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

    def picture(i: int) -> Image.Image:
        photo, *box = boxes[i]
        return Image.fromarray(data.images[photo]).crop(tuple(box))

    def item(i: int) -> str:
        photo, left, top, right, _ = boxes[i]
        return f"{Path(data.filenames[photo]).name} [{left}:{right}, {top}:]"

    return Images("photographs of scikit-learn", len(boxes), picture, item)


def _timm(text: str) -> Images:
    from timm import data

    name, _, split = text.partition("@")
    try:
        dataset: Any = data.create_dataset(name, root=None, split=split or "validation", download=False)
        count = len(dataset)
    except Exception as error:  # every reader has its own errors
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise UnsmoothError(f"timm cannot open the data set {text!r}: {first}") from error

    def picture(i: int) -> Image.Image:
        found = dataset[i][0]
        return found if isinstance(found, Image.Image) else Image.fromarray(np.asarray(found))

    return Images(text, count, picture, lambda i: f"{text}[{i}]", lambda i: int(dataset[i][1]))


ImageFile.LOAD_TRUNCATED_IMAGES = False  # half a picture is a broken one, whatever another library set

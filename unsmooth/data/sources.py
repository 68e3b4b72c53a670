"""Images by name: a folder, an .npz file, a data set that timm can read, or what scikit-learn's wheel contains.

    digits            1,797 scans of 8 × 8 pixels with labels, from scikit-learn
    photographs       crops of the two photographs in scikit-learn's wheel
    FOLDER            every image below it; the names of class folders are the labels
    FILE.npz          `images`, uint8 (N, H, W, C) or (N, H, W), and `labels` if there are any; or x and y, x_test, …
    torch/…, hfds/…   data sets of timm that are read by place: see `timm_data`
    wds/…, hfids/…, tfds/…    those that are read from front to back: see `streams`

No image is read before it is asked for. One that cannot be used says why, in words, by its name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile

from unsmooth.data.images import SUFFIXES, Images, Source, as_images, of_array, read_picture
from unsmooth.errors import UnsmoothError

TIMM_PREFIXES = ("torch/", "hfds/", "hfids/", "wds/", "tfds/")
EMBEDDED = ("digits", "photographs")
NPZ_NAMES = (("images", "labels"), ("x", "y"), ("x_test", "y_test"), ("x_train", "y_train"))  # first found is taken
CROPS = 4  # crops along each side of a photograph


def open_images(source: str | Path, root: str | Path | None = None) -> Images:
    """The images that a name stands for; `root` is where a data set of timm has its files."""
    return as_images(open_source(source, root))


def open_source(source: str | Path, root: str | Path | None = None) -> Source:
    """The same, and a stream as a stream."""
    text = str(source)
    if text == "digits":
        return _digits()
    if text == "photographs":
        return _photographs()
    if text.startswith(TIMM_PREFIXES):
        from unsmooth.data.timm_datasets import open_timm  # it is built on this file

        return open_timm(text, root)
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


def _folder(path: Path) -> Images:
    names = sorted(_files_below(path), key=lambda name: name.split(b"/"))
    if not names:
        raise UnsmoothError(f"the folder {path} holds no images (looked for {', '.join(SUFFIXES)})")
    # Images in the folder itself have no class; a label needs every image to have one.
    tops = [name.rpartition(b"/")[0].split(b"/")[0] for name in names]
    known = all(tops)
    classes, marks = np.unique(np.array(tops, dtype=np.bytes_), return_inverse=True)
    # Arrays: every worker would end up with its own copy of a list of millions of strings.
    inside = np.array(names, dtype=np.bytes_)

    def item(i: int) -> str:
        return os.fsdecode(bytes(inside[i]))

    return Images(str(path), len(names), lambda i: read_picture(path / item(i)), item,
                  (lambda i: int(marks[i])) if known and len(classes) > 1 else None,
                  tuple(os.fsdecode(bytes(name)) for name in classes) if known else ())  # fmt: skip


def _files_below(path: Path) -> Iterator[bytes]:
    """Image files by their names below a folder, also behind links, as bytes with slashes."""
    for folder, _, names in os.walk(path, followlinks=True):
        below = Path(folder).relative_to(path).as_posix()
        for name in names:
            if name.lower().endswith(SUFFIXES):
                yield os.fsencode(name if below == "." else f"{below}/{name}")


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file by name."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: np.asarray(file[key]) for key in file.files}
    except Exception as error:  # zip, header and pickle errors have no common class
        raise UnsmoothError(f"cannot read {path}: {str(error).splitlines()[0]}") from error


def _npz(path: Path) -> Images:
    arrays = read_npz(path)
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


ImageFile.LOAD_TRUNCATED_IMAGES = False  # half a picture is a broken one, whatever another library set

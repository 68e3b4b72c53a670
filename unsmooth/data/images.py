"""Images that are read when asked for: by index, or as a stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from unsmooth.errors import UnsmoothError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


THINNEST = 50  # an image more than so many times as long as wide is a strip, not a picture


class ImageReadError(UnsmoothError):
    """An image that cannot be used, and why."""


@dataclass(frozen=True)
class Images:
    """A sequence of pictures that are read when asked for: `picture(i)` and, where there are any, `labels(i)`."""

    name: str
    count: int
    picture: Callable[[int], Image.Image]
    item: Callable[[int], str]
    labels: Callable[[int], int] | None = None
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Example:
    """One picture of a stream, not decoded yet."""

    picture: Callable[[], Image.Image]
    label: int
    name: str


@dataclass(frozen=True)
class Stream:
    """ImageDataset that can only be read from front to back: `examples(seed)` shuffles them, `examples(None)` does not."""

    name: str
    count: int  # 0: not known
    examples: Callable[[int | None], Iterator[Example]]
    classes: tuple[str, ...] = ()
    labelled: bool = True
    limit: int = 0  # labels must be below it; 0: not known
    found: Callable[[], set[int]] | None = None  # reads the labels, where that takes no images


Source = Images | Stream


def as_images(source: Source) -> Images:
    """A stream as images by place: going forward reads on, going back starts anew."""
    if isinstance(source, Images):
        return source
    if not source.count:
        raise uncounted(source)
    place, example, rest, process = -1, None, source.examples(None), os.getpid()

    def at(i: int) -> Example:
        nonlocal place, example, rest, process
        if i < place or process != os.getpid():  # a forked process would share the place in the file
            place, example, rest, process = -1, None, source.examples(None), os.getpid()
        while place < i:
            place, example = place + 1, next(rest, None)
            if example is None:
                raise UnsmoothError(f"{source.name} has {place} images, and should have {source.count}")
        assert example is not None
        return example

    return Images(source.name, source.count, lambda i: at(i).picture(), lambda i: at(i).name,
                  (lambda i: at(i).label) if source.labelled else None, source.classes)  # fmt: skip


def uncounted(stream: Stream) -> UnsmoothError:
    return UnsmoothError(
        f"{stream.name} does not say how many images it has: write their number behind a |, as in {stream.name}|50000"
    )


def first_usable(source: Source, channels: int = 3) -> Image.Image:
    """The first picture that a host can take; an error where there is none."""
    reasons = []
    for picture, name in _pictures(source):
        try:
            return for_host(picture(), channels)
        except (ImageReadError, OSError) as error:
            reasons.append(f"{name}: {error}")
    first = f": all {len(reasons)} were skipped, the first one {reasons[0]}" if reasons else ""
    raise UnsmoothError(f"{source.name} gave no image that can be used{first}")


def _pictures(source: Source) -> Iterator[tuple[Callable[[], Image.Image], str]]:
    if isinstance(source, Stream):
        for example in source.examples(None):
            yield example.picture, example.name
    else:
        for i in range(source.count):
            yield (lambda at=i: source.picture(at)), source.item(i)  # type: ignore[misc]


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


def spread(total: int, count: int) -> list[int]:
    """So many places, spread evenly over all: data are often sorted by class."""
    return [int(place) for place in np.linspace(0, total - 1, min(count, total)).round()]


def chosen(images: Images, places: Any) -> Images:
    """Some of the images, by their places."""
    at = [int(i) for i in places]
    labels = images.labels
    return Images(
        images.name, len(at), lambda i: images.picture(at[i]), lambda i: images.item(at[i]),
        None if labels is None else lambda i: labels(at[i]), images.classes,
    )  # fmt: skip


def read_picture(file: Path | bytes) -> Image.Image:
    """A picture file, or its content, as 8-bit: the first frame of an animation, 16-bit grey scaled down."""

    def read() -> Image.Image:
        with Image.open(BytesIO(file) if isinstance(file, bytes) else file) as found:
            found.seek(0)
            return found.copy()  # which loads it

    if not file if isinstance(file, bytes) else file.exists() and file.stat().st_size == 0:
        raise ImageReadError("the file is empty")
    return whole(read)


def whole(read: Callable[[], Image.Image]) -> Image.Image:
    """What `read` gives, loaded and as 8-bit, or `ImageReadError` with the reason."""
    try:
        found = read()
        found.load()
        return eight_bit(found)
    except UnidentifiedImageError as error:
        raise ImageReadError("not an image that Pillow can read") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageReadError(str(error) or type(error).__name__) from error


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
        raise ImageReadError(f"{width} × {height} pixels is a strip, not a picture")
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert({1: "L", 3: "RGB"}[channels])

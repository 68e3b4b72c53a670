"""Sources of images that are decoded on access: by index, or as a stream."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from unsmooth.errors import UnsmoothError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
FINGERPRINT_IMAGES = 32
MAX_ASPECT = 50  # images with a higher aspect ratio are rejected as broken


class ImageReadError(UnsmoothError):
    """An image cannot be used; the message says why."""


@dataclass(frozen=True)
class Images:
    """Images that are decoded by index.

    Attributes:
        name: Name of the data.
        count: Number of images.
        load: Decodes image i; raises `ImageReadError` or `OSError` if it is broken.
        item_name: Name of image i, for messages.
        labels: Label of image i; None without labels.
        classes: Class names, if known.
        sequential: Whether they are read from a stream, so that indices should rise.
    """

    name: str
    count: int
    load: Callable[[int], Image.Image]
    item_name: Callable[[int], str]
    labels: Callable[[int], int] | None = None
    classes: tuple[str, ...] = ()
    sequential: bool = False


@dataclass(frozen=True)
class Example:
    """One image of a stream, which is decoded by `load`."""

    load: Callable[[], Image.Image]
    label: int
    name: str


@dataclass(frozen=True)
class Shards:
    """Parts of a stream that can be read on their own.

    Attributes:
        count: Number of shards.
        read: Iterates over the examples of shard i.
        lengths: Numbers of examples; None if unknown.
    """

    count: int
    read: Callable[[int], Iterator[Example]]
    lengths: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Stream:
    """Images that can only be read sequentially.

    Attributes:
        name: Name of the data.
        count: Number of images; 0 if unknown.
        examples: Iterates over all examples, shuffled by a seed, or in order if the seed is None.
        classes: Class names, if known.
        labelled: Whether the examples have labels.
        num_classes: Number of classes, which labels must be below; 0 if unknown.
        read_labels: Reads the set of labels without the images, if that is possible.
        shards: Its shards, if it consists of several.
        sequential: Always true; see `Images`.
    """

    sequential: ClassVar[bool] = True
    name: str
    count: int
    examples: Callable[[int | None], Iterator[Example]]
    classes: tuple[str, ...] = ()
    labelled: bool = True
    num_classes: int = 0
    read_labels: Callable[[], set[int]] | None = None
    shards: Shards | None = None


ImageSource = Images | Stream


def missing_count(stream: Stream) -> UnsmoothError:
    """Error for a stream of unknown length."""
    return UnsmoothError(
        f"{stream.name} does not specify its number of images. Add it after |, as in {stream.name}|50000"
    )


def first_valid_image(source: ImageSource, channels: int = 3) -> Image.Image:
    """First image that is not broken; raises `UnsmoothError` if there is none."""
    reasons = []
    for load, name in _loaders(source):
        try:
            return convert_channels(load(), channels)
        except (ImageReadError, OSError) as error:
            reasons.append(f"{name}: {error}")
    first = f": all {len(reasons)} are broken. First: {reasons[0]}" if reasons else ""
    raise UnsmoothError(f"{source.name} has no valid image{first}")


def _loaders(source: ImageSource) -> Iterator[tuple[Callable[[], Image.Image], str]]:
    if isinstance(source, Stream):
        for example in source.examples(None):
            yield example.load, example.name
    else:
        for i in range(source.count):
            yield (lambda index=i: source.load(index)), source.item_name(i)  # type: ignore[misc]


def images_from_array(array: Any, name: str, labels: Any = None) -> Images:
    """Images of a uint8 array of shape (N, H, W, C) or (N, H, W)."""
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3, 4)):
        raise UnsmoothError(
            f"{name}: images must be uint8 of shape (N, H, W, C) with 1, 3 or 4 channels, or (N, H, W) "
            f"(got {array.dtype} of shape {tuple(array.shape)})"
        )
    if not len(array):
        raise UnsmoothError(f"{name} holds no images")
    if labels is not None and (labels.shape != (len(array),) or not np.issubdtype(labels.dtype, np.integer)):
        raise UnsmoothError(
            f"{name}: labels must be {len(array)} integers, one per image (got {labels.dtype} of shape "
            f"{tuple(labels.shape)})"
        )

    def load(i: int) -> Image.Image:
        pixels = array[i]
        return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)

    label = None if labels is None else lambda i: int(labels[i])
    return Images(name, len(array), load, lambda i: f"{name}[{i}]", label)


@lru_cache(maxsize=8)
def fingerprint(source: ImageSource) -> str:
    """A digest of some images and labels, which tells other data of the same size. A stream has none."""
    if isinstance(source, Stream):
        return ""
    digest = hashlib.sha256()
    for i in evenly_spaced(source.count, FINGERPRINT_IMAGES):
        label = "" if source.labels is None else source.labels(i)
        try:
            image = source.load(i)
            digest.update(f"{image.size} {label} ".encode() + image.tobytes())
        except (ImageReadError, OSError):
            digest.update(f"broken {label} ".encode())
    return digest.hexdigest()[:16]


def evenly_spaced(total: int, count: int) -> list[int]:
    """At most `count` indices, evenly spaced over `total`, since data is often sorted by class."""
    return [int(index) for index in np.linspace(0, total - 1, min(count, total)).round()]


def subset(images: Images, indices: Any) -> Images:
    """Images at the given indices."""
    index = [int(i) for i in indices]
    labels = images.labels
    return Images(
        images.name, len(index), lambda i: images.load(index[i]), lambda i: images.item_name(index[i]),
        None if labels is None else lambda i: labels(index[i]), images.classes, images.sequential,
    )  # fmt: skip


def read_image(file: Path | bytes) -> Image.Image:
    """Decode an image file, or its content, to 8 bits: the first frame of an animation, 16-bit grey scaled down."""

    def read() -> Image.Image:
        with Image.open(BytesIO(file) if isinstance(file, bytes) else file) as image:
            image.seek(0)
            return image.copy()  # decodes it

    if not file if isinstance(file, bytes) else file.exists() and file.stat().st_size == 0:
        raise ImageReadError("the file is empty")
    return decode_image(read)


def decode_image(read: Callable[[], Image.Image]) -> Image.Image:
    """Decode the image that `read` returns to 8 bits; raise `ImageReadError` if it is broken or truncated."""
    try:
        with reject_truncated():
            image = read()
            image.load()
        return to_8bit(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as error:
        raise ImageReadError("not an image that Pillow can read") from error
    except Exception as error:  # decoders raise errors of many types for damaged files
        raise ImageReadError(str(error) or type(error).__name__) from error


class _TruncationFlag:
    """Value of Pillow's flag, which is one for the process, before the first running decoder changed it."""

    lock = threading.Lock()
    decoders = 0
    previous = False


@contextmanager
def reject_truncated() -> Iterator[None]:
    """Have Pillow raise on truncated images, even if another library set `ImageFile.LOAD_TRUNCATED_IMAGES`."""
    with _TruncationFlag.lock:
        if _TruncationFlag.decoders == 0:
            _TruncationFlag.previous = ImageFile.LOAD_TRUNCATED_IMAGES
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        _TruncationFlag.decoders += 1
    try:
        yield
    finally:
        with _TruncationFlag.lock:
            _TruncationFlag.decoders -= 1
            if _TruncationFlag.decoders == 0:
                ImageFile.LOAD_TRUNCATED_IMAGES = _TruncationFlag.previous


def to_8bit(image: Image.Image) -> Image.Image:
    """Convert 16-bit, 32-bit and floating-point grey to 8-bit grey; return other images unchanged."""
    if image.mode.startswith("I") or image.mode == "F":
        pixels = np.asarray(image).astype(np.float64)
        highest = pixels.max(initial=0)
        is_16bit = image.mode.startswith("I;16") or highest > 255
        scale = 65535.0 if is_16bit else 1.0 if image.mode == "F" and highest <= 1 else 255.0
        return Image.fromarray((pixels.clip(0, scale) / scale * 255).round().astype(np.uint8))
    return image


def convert_channels(image: Image.Image, channels: int) -> Image.Image:
    """Convert an image to 1 or 3 channels, with transparency blended onto white."""
    width, height = image.size
    if min(width, height) < 2 or max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageReadError(f"an image of {width} × {height} pixels is too narrow")
    try:
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert({1: "L", 3: "RGB"}[channels])
    except ValueError as error:  # LAB, for instance
        raise ImageReadError(f"Pillow cannot convert its mode {image.mode}") from error

"""Images and annotations in the layout of the scene-parsing benchmark (ADE20K):

    ROOT/images/training/NAME.jpg      ROOT/annotations/training/NAME.png
    ROOT/images/validation/NAME.jpg    ROOT/annotations/validation/NAME.png

ROOT may also be the folder that holds ADEChallengeData2016/. An annotation has one channel; its values are classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from unsmooth.data.images import SUFFIXES, ImageReadError, evenly_spaced, read_image, reject_truncated
from unsmooth.errors import UnsmoothError
from unsmooth.tasks.segmentation.options import SegmentationOptions

BENCHMARK = "ADEChallengeData2016"  # folder in the archive of the benchmark
SPLITS = {"train": "training", "val": "validation"}
IGNORE = -1  # label of unlabelled pixels


@dataclass(frozen=True)
class Scenes:
    """Images of one split with their annotations, as paths relative to the root."""

    root: Path
    images: tuple[str, ...]
    annotations: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.images)

    def limit(self, count: int) -> Scenes:
        """At most `count` evenly spaced scenes; 0: all."""
        if not count or count >= self.count:
            return self
        indices = evenly_spaced(self.count, count)
        return replace(
            self,
            images=tuple(self.images[i] for i in indices),
            annotations=tuple(self.annotations[i] for i in indices),
        )

    def read(self, index: int, options: SegmentationOptions) -> tuple[Image.Image, Image.Image]:
        """An image, and its labels as an image of integers, `IGNORE` if unlabelled."""
        image = read_image(self.root / self.images[index])
        name = self.annotations[index]
        labels = read_labels(self.root / name, name, options)
        if labels.size != image.size:
            raise UnsmoothError(
                f"{name} has {_pixels(labels)} pixels, but {self.images[index]} has {_pixels(image)}. "
                "An annotation must have the size of its image."
            )
        return image, labels


def open_scenes(data: str | Path, split: str) -> Scenes:
    """Open a split ("train" or "val"): find the files and match images and annotations, without reading them."""
    root, folder = find_root(data), SPLITS[split]
    images, annotations = _files(root, f"images/{folder}", SUFFIXES), _files(root, f"annotations/{folder}", (".png",))
    if not images:
        raise UnsmoothError(f"{root}/images/{folder} holds no images (expected {', '.join(SUFFIXES)})")
    for files, others, kind in ((images, annotations, "annotation"), (annotations, images, "image")):
        missing = sorted(files.keys() - others.keys())
        if missing:
            raise UnsmoothError(
                f"{root}/{files[missing[0]]} has no {kind} in {kind}s/{folder}"
                + (f", nor have {len(missing) - 1} other files" if len(missing) > 1 else "")
            )
    names = sorted(images)
    return Scenes(root, tuple(images[name] for name in names), tuple(annotations[name] for name in names))


def find_root(data: str | Path) -> Path:
    for root in (Path(data), Path(data) / BENCHMARK):
        if (root / "images").is_dir() and (root / "annotations").is_dir():
            return root
    raise UnsmoothError(
        f"{data} does not have the layout of ADE20K. Use a folder with images/ and annotations/, and training/ and "
        f"validation/ in each."
    )


def read_labels(path: Path, name: str, options: SegmentationOptions) -> Image.Image:
    """Read an annotation as an image of 32-bit labels that start at 0."""
    values = np.asarray(_annotation(path, name)).astype(np.int32)
    first = 1 if options.reduce_zero_label else 0
    labels = np.where(values == options.ignore, IGNORE, values - first)
    if labels.max(initial=IGNORE) >= options.classes:
        raise UnsmoothError(
            f"{name} has the value {int(labels.max()) + first}, but {options.classes} classes have values "
            f"{first} to {options.classes - 1 + first}. Check the options classes, reduce_zero_label and ignore."
        )
    return Image.fromarray(labels)


def _annotation(path: Path, name: str) -> Image.Image:
    """Open an annotation file with its raw values."""
    try:
        with reject_truncated(), Image.open(path) as file:
            image = file.copy()  # decodes it
    except FileNotFoundError as error:
        raise UnsmoothError(f"the annotation {name} no longer exists") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageReadError(f"cannot read its annotation {name}: {error or type(error).__name__}") from error
    if len(image.getbands()) != 1 or image.mode == "F":
        raise UnsmoothError(
            f"{name} has mode {image.mode}. An annotation must have one channel, whose values are classes."
        )
    return image


def _files(root: Path, folder: str, suffixes: tuple[str, ...]) -> dict[str, str]:
    """Relative paths of the files of a folder, by name without suffix."""
    if not (root / folder).is_dir():
        raise UnsmoothError(f"{root} has no folder {folder}")
    files: dict[str, str] = {}
    for path in (root / folder).iterdir():
        if path.suffix.lower() in suffixes:
            if path.stem in files:
                raise UnsmoothError(
                    f"{root}/{folder} has two files for {path.stem}: {files[path.stem]} and {path.name}"
                )
            files[path.stem] = f"{folder}/{path.name}"
    return files


def _pixels(image: Image.Image) -> str:
    return f"{image.size[0]} × {image.size[1]}"

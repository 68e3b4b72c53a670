"""ImageDataset and annotations in the layout of the scene-parsing benchmark (ADE20K):

    ROOT/images/training/NAME.jpg      ROOT/annotations/training/NAME.png
    ROOT/images/validation/NAME.jpg    ROOT/annotations/validation/NAME.png

ROOT may also be the folder that holds ADEChallengeData2016/. An annotation has one channel; its values are classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from unsmooth.data.images import SUFFIXES, ImageReadError, evenly_spaced, read_image
from unsmooth.errors import UnsmoothError
from unsmooth.tasks.segmentation.options import SegmentationOptions

BENCHMARK = "ADEChallengeData2016"  # the folder in the benchmark's archive
SPLITS = {"train": "training", "val": "validation"}
IGNORE = -1  # the label of a pixel that does not count


@dataclass(frozen=True)
class Scenes:
    """The pictures of one split, each with an annotation; names are paths below the root."""

    root: Path
    pictures: tuple[str, ...]
    annotations: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.pictures)

    def some(self, count: int) -> Scenes:
        """So many of them, spread over all; 0: all."""
        if not count or count >= self.count:
            return self
        at = evenly_spaced(self.count, count)
        return replace(
            self,
            pictures=tuple(self.pictures[i] for i in at),
            annotations=tuple(self.annotations[i] for i in at),
        )

    def read(self, place: int, options: SegmentationOptions) -> tuple[Image.Image, Image.Image]:
        """A picture, and its labels as an image of whole numbers, `IGNORE` where there is none."""
        picture = read_image(self.root / self.pictures[place])
        name = self.annotations[place]
        labels = read_labels(self.root / name, name, options)
        if labels.size != picture.size:
            raise UnsmoothError(
                f"{name} has {_pixels(labels)} pixels and {self.pictures[place]} has {_pixels(picture)}: "
                "an annotation has the size of its picture"
            )
        return picture, labels


def open_scenes(data: str | Path, split: str) -> Scenes:
    """The pictures of a split ("train" or "val"), each with its annotation. Reads names only."""
    root, folder = find_root(data), SPLITS[split]
    pictures, annotations = _files(root, f"images/{folder}", SUFFIXES), _files(root, f"annotations/{folder}", (".png",))
    if not pictures:
        raise UnsmoothError(f"{root}/images/{folder} holds no pictures (looked for {', '.join(SUFFIXES)})")
    for these, those, what in ((pictures, annotations, "annotation"), (annotations, pictures, "picture")):
        missing = sorted(these.keys() - those.keys())
        if missing:
            of = "images" if what == "picture" else "annotations"
            raise UnsmoothError(
                f"{root}/{these[missing[0]]} has no {what} in {of}/{folder}"
                + (f", and so have {len(missing) - 1} more" if len(missing) > 1 else "")
            )
    names = sorted(pictures)
    return Scenes(root, tuple(pictures[name] for name in names), tuple(annotations[name] for name in names))


def find_root(data: str | Path) -> Path:
    for root in (Path(data), Path(data) / BENCHMARK):
        if (root / "images").is_dir() and (root / "annotations").is_dir():
            return root
    raise UnsmoothError(
        f"{data} is no data for segmentation: it needs the folders images/ and annotations/ with training/ and "
        f"validation/ in each, as in {BENCHMARK}"
    )


def read_labels(path: Path, name: str, options: SegmentationOptions) -> Image.Image:
    """An annotation as labels from 0, an image of 32-bit numbers."""
    values = np.asarray(_annotation(path, name)).astype(np.int32)
    first = 1 if options.reduce_zero_label else 0
    labels = np.where(values == options.ignore, IGNORE, values - first)
    if labels.max(initial=IGNORE) >= options.classes:
        raise UnsmoothError(
            f"{name} has the value {int(labels.max()) + first}, and {options.classes} classes go from {first} to "
            f"{options.classes - 1 + first}: check the options classes, reduce_zero_label and ignore"
        )
    return Image.fromarray(labels)


def _annotation(path: Path, name: str) -> Image.Image:
    """The file of an annotation with its values as they are."""
    try:
        with Image.open(path) as file:
            found = file.copy()  # which loads it
    except FileNotFoundError as error:
        raise UnsmoothError(f"{name} is gone: an annotation must stay beside its picture") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageReadError(f"its annotation {name} cannot be read: {error or type(error).__name__}") from error
    if len(found.getbands()) != 1 or found.mode == "F":
        raise UnsmoothError(
            f"{name} is a picture of mode {found.mode}: an annotation has one channel, whose values are classes"
        )
    return found


def _files(root: Path, folder: str, suffixes: tuple[str, ...]) -> dict[str, str]:
    """Files of a folder by their names without suffix."""
    if not (root / folder).is_dir():
        raise UnsmoothError(f"{root} has no folder {folder}")
    found: dict[str, str] = {}
    for path in (root / folder).iterdir():
        if path.suffix.lower() in suffixes:
            if path.stem in found:
                raise UnsmoothError(
                    f"{root}/{folder} has two files for {path.stem}: {found[path.stem]} and {path.name}"
                )
            found[path.stem] = f"{folder}/{path.name}"
    return found


def _pixels(picture: Image.Image) -> str:
    return f"{picture.size[0]} × {picture.size[1]}"

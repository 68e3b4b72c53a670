"""Batches that a host accepts, made of whatever images were given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unsmooth.data.images import ImageReadError, Images, for_host, of_array, spread
from unsmooth.data.sources import open_images
from unsmooth.data.transforms import preprocessing
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import image_size

LIMIT = 512  # images of a data set that are looked at, unless more are asked for
SMALL = 16  # hosts whose images are at most so wide are fed with digits

Source = str | Path | Tensor | np.ndarray[Any, Any] | Iterable[Any] | None


@dataclass
class NamedImages:
    images: Tensor
    labels: Tensor | None = None
    names: list[str] = field(default_factory=list)


@dataclass
class ImageBatches:
    """Batches for one host, and what became of the images: it can be run through more than once."""

    name: str
    size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    count: int | None  # None: a loader that does not say
    batch_size: int
    _batches: Any
    skipped: dict[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[NamedImages]:
        self.skipped = {}
        seen = 0
        for batch in self._batches(self):
            seen += len(batch.images)
            yield batch
        if not seen:
            first = next(iter(self.skipped.items()), None)
            reason = f": all {len(self.skipped)} were skipped, the first one {first[0]}: {first[1]}" if first else ""
            raise UnsmoothError(f"{self.name} gave no image that can be used{reason}")

    def picture(self, image: Tensor) -> Tensor:
        """An image of a batch as pixels, uint8 (H, W, 3), for a person to look at."""
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        pixels = image.detach().float().cpu()
        if self.mean:
            pixels = pixels * std + mean
        else:  # a tensor that came normalised by somebody else: stretch it
            pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min()).clamp_min(1e-12)
        pixels = (pixels.nan_to_num(0).clamp(0, 1) * 255).round().to(torch.uint8)
        return (pixels[:3] if len(pixels) >= 3 else pixels[:1].expand(3, -1, -1)).permute(1, 2, 0)


def image_batches(
    model: nn.Module, source: Source, batch_size: int, limit: int | None = LIMIT, root: str | Path | None = None
) -> ImageBatches:
    """Batches of `source` for a host.

    A name (see `unsmooth.data.sources`) or an array of uint8 is read, resized and normalised as the host's own settings say. A
    tensor of floats, and what a loader yields (tensors, pairs with labels, dicts with `pixel_values`), is taken as it
    is. `root` is where timm looks for the files of a data set.
    """
    if batch_size < 1 or (limit is not None and limit < 1):
        raise UnsmoothError(f"batch size and limit must be at least 1, not {batch_size} and {limit}")
    size = image_size(model)
    if source is None:
        source = "digits" if size[1] <= SMALL else "photographs"
    if isinstance(source, str | Path):
        return _of_pictures(model, open_images(source, root), size, batch_size, limit)
    if isinstance(source, np.ndarray) or (isinstance(source, Tensor) and source.dtype == torch.uint8):
        if isinstance(source, Tensor):
            source = (source.movedim(1, -1) if source.ndim == 4 else source).cpu().numpy()
        return _of_pictures(model, of_array(source, "the array"), size, batch_size, limit)
    if isinstance(source, Tensor):
        images = source
        _check(images, size)

        def slices(self: ImageBatches) -> Iterator[NamedImages]:
            last = len(images) if limit is None else min(limit, len(images))
            for start in range(0, last, batch_size):
                chosen = images[start : min(start + batch_size, last)]
                yield NamedImages(chosen, names=[f"image {start + i}" for i in range(len(chosen))])

        count = len(images) if limit is None else min(limit, len(images))
        return ImageBatches("a tensor", size, (), (), count, batch_size, slices)
    if not isinstance(source, Iterable):
        raise UnsmoothError(f"images must be a folder, a file, a tensor or a loader, not {type(source).__name__}")
    return _of_loader(source, size, batch_size, limit)


def _of_pictures(
    model: nn.Module, images: Images, size: tuple[int, int, int], batch_size: int, limit: int | None
) -> ImageBatches:
    wanted = preprocessing(model)
    transform = wanted.evaluation()
    count = images.count if limit is None else min(limit, images.count)
    chosen = spread(images.count, count)

    def batches(self: ImageBatches) -> Iterator[NamedImages]:
        tensors: list[Tensor] = []
        names: list[str] = []
        labels: list[int] = []
        for i in chosen:
            try:
                tensors.append(transform(for_host(images.picture(i), size[0])))
            except (ImageReadError, OSError) as error:
                self.skipped[images.item(i)] = str(error)
                continue
            names.append(images.item(i))
            if images.labels is not None:
                labels.append(images.labels(i))
            if len(tensors) == batch_size:
                yield NamedImages(torch.stack(tensors), torch.tensor(labels) if labels else None, names)
                tensors, names, labels = [], [], []
        if tensors:
            yield NamedImages(torch.stack(tensors), torch.tensor(labels) if labels else None, names)

    return ImageBatches(images.name, size, wanted.mean, wanted.std, count, batch_size, batches)


def _of_loader(source: Iterable[Any], size: tuple[int, int, int], batch_size: int, limit: int | None) -> ImageBatches:
    def batches(self: ImageBatches) -> Iterator[NamedImages]:
        seen = 0
        for found in source:
            labels: Any = None
            if isinstance(found, dict):
                labels = found.get("labels")
                found = found.get("pixel_values", found.get("image"))
            elif isinstance(found, list | tuple):
                found, labels = [*found, None, None][:2]
            if not isinstance(found, Tensor):
                raise UnsmoothError(
                    f"the loader yields {type(found).__name__}, not a tensor of images, a pair (images, labels) or a "
                    "dict with pixel_values"
                )
            _check(found, size)
            if isinstance(labels, Tensor) and labels.ndim == 1 and len(labels) != len(found):
                raise UnsmoothError(f"the loader yields {len(found)} images and {len(labels)} labels")
            found = found if limit is None else found[: limit - seen]
            labels = labels[: len(found)] if isinstance(labels, Tensor) and labels.ndim == 1 else None
            # A loader's batch may be larger than one block's maps allow.
            for start in range(0, len(found), batch_size):
                part = slice(start, start + batch_size)
                names = [f"image {seen + start + i}" for i in range(len(found[part]))]
                yield NamedImages(found[part], None if labels is None else labels[part], names)
            seen += len(found)
            if limit is not None and seen >= limit:
                return

    return ImageBatches("a loader", size, (), (), None, batch_size, batches)


def _check(images: Tensor, size: tuple[int, int, int]) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise UnsmoothError(
            f"images must be floats of shape (N, C, H, W), or uint8; these are {images.dtype} of {tuple(images.shape)}"
        )
    if not len(images):
        raise UnsmoothError("there are no images in the tensor")
    if images.shape[1] != size[0]:
        raise UnsmoothError(f"this host takes {size[0]} channels, and the images have {images.shape[1]}")

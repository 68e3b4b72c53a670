"""Batches of images for one host, from any input: a name, an array, a tensor or a loader.

Hosts of clips, spectrograms or signals take a float tensor, a loader, or an .npz file with one of them as `images`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unsmooth.data.images import ImageReadError, Images, convert_channels, evenly_spaced, images_from_array
from unsmooth.data.sampling import evaluation_share
from unsmooth.data.sources import open_images
from unsmooth.data.transforms import preprocessing
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import NAMED, input_shape, wrong_input
from unsmooth.utils.processes import Processes

LIMIT = 512  # default number of images
SMALL = 16  # largest input side for which digits are the default images

ImageInput = str | Path | Tensor | np.ndarray[Any, Any] | Iterable[Any] | None


@dataclass
class NamedImages:
    """Batch of images with optional labels, and names for messages and reports."""

    images: Tensor
    labels: Tensor | None = None
    names: list[str] = field(default_factory=list)
    before: int | None = None  # valid images before these, in all processes; None: as many as this process has seen

    def part(self, which: slice) -> NamedImages:
        """Some of the images."""
        labels = None if self.labels is None else self.labels[which]
        before = None if self.before is None else self.before + (which.start or 0)
        return NamedImages(self.images[which], labels, self.names[which], before)


@dataclass
class ImageBatches:
    """Batches for one host, which can be iterated several times.

    Attributes:
        name: Name of the images.
        size: Channels, height and width of the host's input, or the shape of another input.
        mean: Mean that was subtracted; () if unknown.
        std: Standard deviation that was divided by; () if unknown.
        count: Number of images; None for a loader.
        batch_size: Images per batch.
        skipped: Reasons by name of the broken images of the last iteration.
    """

    name: str
    size: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    count: int | None
    batch_size: int
    _batches: Any
    skipped: dict[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[NamedImages]:
        self.skipped = {}
        seen = 0
        for batch in self._batches(self, 0, 1):
            seen += len(batch.images)
            yield batch
        self.check_valid(seen)

    def share(self, processes: Processes) -> Iterator[NamedImages]:
        """The batches of one process: every `world`-th one, or a contiguous part of those of a stream.

        Other images are not read, except from a loader. A broken image leaves its batch smaller, since the next image
        may be another process's. After each round, all processes know how many images were valid; the last round also
        tells every process which were not.
        """
        if processes.world == 1:
            yield from self
            return
        self.skipped, seen = {}, 0
        own = self._batches(self, processes.rank, processes.world)
        while True:
            batch = next(own, None)
            counts = processes.gather(None if batch is None else len(batch.images))
            if all(count is None for count in counts):
                break
            if batch is not None and len(batch.images):
                if batch.before is None:
                    batch.before = seen + sum(count or 0 for count in counts[: processes.rank])
                yield batch
            seen += sum(count or 0 for count in counts)
        for skipped in processes.gather(self.skipped):
            self.skipped |= skipped
        self.check_valid(seen)

    def check_valid(self, seen: int) -> None:
        """Raise if no image was valid."""
        if not seen:
            first = next(iter(self.skipped.items()), None)
            reason = f": all {len(self.skipped)} are broken. First: {first[0]}: {first[1]}" if first else ""
            raise UnsmoothError(f"{self.name} has no valid image{reason}")

    def to_pixels(self, image: Tensor) -> Tensor:
        """Undo the normalisation of an image, for display: uint8 (H, W, 3)."""
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        pixels = image.detach().float().cpu()
        if self.mean:
            pixels = pixels * std + mean
        else:  # normalised by the caller in an unknown way: use the full range
            pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min()).clamp_min(1e-12)
        pixels = (pixels.nan_to_num(0).clamp(0, 1) * 255).round().to(torch.uint8)
        return (pixels[:3] if len(pixels) >= 3 else pixels[:1].expand(3, -1, -1)).permute(1, 2, 0)


def image_batches(
    model: nn.Module, source: ImageInput, batch_size: int, limit: int | None = LIMIT, root: str | Path | None = None
) -> ImageBatches:
    """Batches of images for a host.

    Args:
        model: Host, or a treated model.
        source: A name (see `unsmooth.data.sources`) or a uint8 array, whose images are resized and normalised for the
            host; or a float tensor or a loader, whose images are used as they are. A loader yields tensors, pairs with
            labels, or dicts with `pixel_values`. Default: photographs, or digits for small hosts.
        batch_size: Images per batch.
        limit: Maximum number of images, evenly spaced; None: all.
        root: Folder of timm dataset files.

    Returns:
        Batches on the CPU.

    Raises:
        UnsmoothError: If there are no images, or if they do not suit the host.
    """
    if batch_size < 1 or (limit is not None and limit < 1):
        raise UnsmoothError(f"batch_size and limit must be at least 1 (got {batch_size} and {limit})")
    size = input_shape(model)
    if len(size) != 3:
        source = _not_images(model, source)
    if source is None:
        source = "digits" if size[1] <= SMALL else "photographs"
    if isinstance(source, str | Path):
        return _from_images(model, open_images(source, root), size, batch_size, limit)
    if isinstance(source, np.ndarray) or (isinstance(source, Tensor) and source.dtype == torch.uint8):
        if isinstance(source, Tensor):
            source = (source.movedim(1, -1) if source.ndim == 4 else source).cpu().numpy()
        return _from_images(model, images_from_array(source, "the array"), size, batch_size, limit)
    if isinstance(source, Tensor):
        images = source
        _check(model, images, size)

        def slices(self: ImageBatches, rank: int, world: int) -> Iterator[NamedImages]:
            last = len(images) if limit is None else min(limit, len(images))
            for start in range(rank * batch_size, last, world * batch_size):
                batch = images[start : min(start + batch_size, last)]
                yield NamedImages(batch, names=[f"image {start + i}" for i in range(len(batch))])

        count = len(images) if limit is None else min(limit, len(images))
        return ImageBatches("a tensor", size, (), (), count, batch_size, slices)
    if not isinstance(source, Iterable):
        raise UnsmoothError(f"images must be a folder, a file, a tensor or a loader (got {type(source).__name__})")
    return _from_loader(model, source, size, batch_size, limit)


def _from_images(
    model: nn.Module, images: Images, size: tuple[int, ...], batch_size: int, limit: int | None
) -> ImageBatches:
    config = preprocessing(model)
    transform = config.eval_transform()
    count = images.count if limit is None else min(limit, images.count)
    indices = evenly_spaced(images.count, count)

    def read(self: ImageBatches, chosen: Iterable[int]) -> Iterator[NamedImages]:
        """Full batches of those that are valid, and what remains."""
        tensors: list[Tensor] = []
        names: list[str] = []
        labels: list[int] = []
        for i in chosen:
            try:
                tensors.append(transform(convert_channels(images.load(i), size[0])))
            except (ImageReadError, OSError) as error:
                self.skipped[images.item_name(i)] = str(error)
                continue
            names.append(images.item_name(i))
            if images.labels is not None:
                labels.append(images.labels(i))
            if len(tensors) == batch_size:
                yield NamedImages(torch.stack(tensors), torch.tensor(labels) if labels else None, names)
                tensors, names, labels = [], [], []
        if tensors:
            yield NamedImages(torch.stack(tensors), torch.tensor(labels) if labels else None, names)

    def batches(self: ImageBatches, rank: int, world: int) -> Iterator[NamedImages]:
        if world == 1:
            yield from read(self, indices)
            return
        starts = evaluation_share(range(0, count, batch_size), rank, world, images.sequential)
        before = starts[0] if images.sequential and starts else None
        for start in starts:
            batch = next(read(self, indices[start : start + batch_size]), NamedImages(torch.empty(0)))
            if before is not None:  # broken images of earlier parts are not known yet, and count
                batch.before, before = before, before + len(batch.images)
            yield batch

    return ImageBatches(images.name, size, config.mean, config.std, count, batch_size, batches)


def _not_images(model: nn.Module, source: ImageInput) -> ImageInput:
    """Clips, spectrograms or signals as a tensor or a loader; raises for images."""
    if isinstance(source, str | Path) and Path(source).suffix == ".npz" and Path(source).is_file():
        try:
            with np.load(source, allow_pickle=False) as arrays:
                source = arrays["images"]
        except (OSError, KeyError, ValueError) as error:
            raise UnsmoothError(f"cannot read {source}: it needs an array `images` ({error})") from error
    if isinstance(source, np.ndarray):
        source = torch.from_numpy(source)
    if source is None or isinstance(source, str | Path):
        raise UnsmoothError(wrong_input(model, "images" if source is None else str(source)))
    if isinstance(source, Tensor) and source.dtype == torch.uint8:
        source = (source.float() / 255 - 0.5) / 0.5
    return source.float() if isinstance(source, Tensor) else source


def _from_loader(
    model: nn.Module, source: Iterable[Any], size: tuple[int, ...], batch_size: int, limit: int | None
) -> ImageBatches:
    def batches(self: ImageBatches, rank: int, world: int) -> Iterator[NamedImages]:
        seen, n = 0, 0
        for images in source:
            labels: Any = None
            if isinstance(images, dict):
                labels = images.get("labels")
                images = next((images[name] for name in (*NAMED, "image") if name in images), None)
            elif isinstance(images, list | tuple):
                images, labels = [*images, None, None][:2]
            if not isinstance(images, Tensor):
                raise UnsmoothError(
                    f"the loader must yield a tensor of images, a pair (images, labels) or a dict with pixel_values "
                    f"(got {type(images).__name__})"
                )
            _check(model, images, size)
            if isinstance(labels, Tensor) and labels.ndim == 1 and len(labels) != len(images):
                raise UnsmoothError(f"the loader yields {len(images)} images and {len(labels)} labels")
            images = images if limit is None else images[: limit - seen]
            labels = labels[: len(images)] if isinstance(labels, Tensor) and labels.ndim == 1 else None
            # The loader's batches may be too large for the attention maps of one block.
            for start in range(0, len(images), batch_size):
                rows = slice(start, start + batch_size)
                names = [f"image {seen + start + i}" for i in range(len(images[rows]))]
                if n % world == rank:
                    yield NamedImages(images[rows], None if labels is None else labels[rows], names)
                n += 1
            seen += len(images)
            if limit is not None and seen >= limit:
                return

    return ImageBatches("a loader", size, (), (), None, batch_size, batches)


def _check(model: nn.Module, images: Tensor, size: tuple[int, ...]) -> None:
    if len(size) != 3:
        if images.shape[1:] != size or not images.is_floating_point():
            raise UnsmoothError(wrong_input(model, f"{images.dtype} of shape {tuple(images.shape)}"))
    elif images.ndim != 4 or not images.is_floating_point():
        raise UnsmoothError(
            f"images must be floats of shape (N, C, H, W), or uint8 (got {images.dtype} of shape {tuple(images.shape)})"
        )
    if not len(images):
        raise UnsmoothError("the tensor holds no images. Pass at least one.")
    if len(size) == 3 and images.shape[1] != size[0]:
        raise UnsmoothError(
            f"the host takes {size[0]} channels, but the images have {images.shape[1]}. Convert them, or build the "
            f"host with in_chans={images.shape[1]}."
        )

"""Training batches of a stream: each worker of a process reads some of its lanes (`unsmooth.data.lanes`)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch.utils.data import IterableDataset, get_worker_info

from unsmooth.data.datasets import EpochSampler, ImageBatch, ImageDataset, ImageItem, collate
from unsmooth.data.images import Example, ImageReadError, Stream
from unsmooth.data.lanes import Lanes
from unsmooth.errors import UnsmoothError


class StreamBatches(IterableDataset[ImageBatch]):
    """Batches of an epoch from a given step on. A broken image is replaced by the next one of its lane and batch.

    Workers are divided into groups. Each group yields the images of its own lanes; `merged` puts them together. The
    workers of a group take turns.
    """

    def __init__(self, dataset: ImageDataset, sampler: EpochSampler, workers: int = 0) -> None:
        assert isinstance(dataset.images, Stream)
        self.dataset, self.sampler, self.stream = dataset, sampler, dataset.images
        self.lanes = Lanes(self.stream, sampler.batch_size, sampler.steps, sampler.repeats)
        own = sorted({self.lanes.lane_of[position] for position in sampler.share})
        groups = min(max(1, workers), len(own))
        self.groups = [own[len(own) * g // groups : len(own) * (g + 1) // groups] for g in range(groups)]
        self.positions = [[p for p in sampler.share if self.lanes.lane_of[p] in group] for group in self.groups]

    def __iter__(self) -> Iterator[ImageBatch]:
        try:
            yield from self._batches(self.sampler.epoch, self.sampler.start)
        except UnsmoothError as error:  # raised in a worker, it would come with the traceback of the worker
            yield collate([ImageItem(None, -1, -1, {}, str(error))])

    def merged(self, parts: Iterator[ImageBatch]) -> Iterator[ImageBatch]:
        """Batches of the process, from those of its groups in turn."""
        positions = [p for own in self.positions for p in own]
        order = torch.tensor([positions.index(p) for p in self.sampler.share])
        while batch := list(islice(parts, len(self.groups))):
            skipped = {name: reason for part in batch for name, reason in part.skipped.items()}
            images, labels, indices = (
                torch.cat([getattr(part, name) for part in batch])[order] for name in ("images", "labels", "indices")
            )
            yield ImageBatch(images, labels, indices, skipped)

    def _batches(self, epoch: int, start: int) -> Iterator[ImageBatch]:
        sampler, lanes = self.sampler, self.lanes
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        turn, group = divmod(worker, len(self.groups))
        turns = workers // len(self.groups)
        if turn >= turns:
            return
        examples = {lane: lanes.examples(lane, sampler.seed, epoch, start) for lane in self.groups[group]}
        for step in range(start, sampler.steps):
            drawn = {lane: list(islice(rows, len(lanes.positions[lane]))) for lane, rows in examples.items()}
            for lane, rows in drawn.items():
                self._check_length(len(rows), len(lanes.positions[lane]))
            if (step - start) % turns == turn:
                yield collate([self._item(drawn, epoch, step, position) for position in self.positions[group]])

    def _item(self, drawn: dict[int, list[Example]], epoch: int, step: int, position: int) -> ImageItem:
        lane, first = self.lanes.lane_of[position], step * self.sampler.batch_size
        positions, examples = self.lanes.positions[lane], drawn[lane]
        seed, skipped = self.sampler.item_seed(epoch, first + position), dict[str, str]()
        for offset in range(len(examples)):
            i = (positions.index(position) + offset) % len(examples)
            item = self._read(examples[i], first + positions[i], seed)
            skipped |= item.skipped
            if item.image is not None or item.fatal:
                return item._replace(skipped=skipped)
        count = len(examples)
        return ImageItem(
            None, -1, first + position, skipped, f"{self.stream.name}: all {count} images of a batch are broken"
        )

    def _read(self, example: Example, index: int, seed: int) -> ImageItem:
        classes = self.stream.num_classes
        if classes and not 0 <= example.label < classes:
            reason = f"{example.name} has label {example.label}, but there are {classes} classes (0 to {classes - 1})"
            return ImageItem(None, -1, index, {}, f"{self.stream.name}: {reason}")
        try:
            return ImageItem(self.dataset.to_tensor(example.load(), seed), example.label, index, {})
        except (ImageReadError, OSError) as error:
            if self.dataset.strict:
                return ImageItem(None, -1, index, {}, self.dataset.strict_error(example.name, error))
            return ImageItem(None, -1, index, {example.name: str(error)})

    def _check_length(self, length: int, expected: int) -> None:
        if length < expected:
            raise UnsmoothError(
                f"{self.stream.name} ended before its {self.stream.count} images. Correct the number after |."
            )

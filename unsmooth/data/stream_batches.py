"""Training batches of a stream.

Every process and worker reads the whole stream and decodes only its own images. So batches do not depend on the number
of processes or workers, as with data that are read by index.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from unsmooth.data.datasets import EpochSampler, ImageBatch, ImageDataset, Item, collate
from unsmooth.data.images import Example, ImageReadError, Stream
from unsmooth.data.sampling import ORDER, derive_seed
from unsmooth.errors import UnsmoothError


class StreamBatches(IterableDataset[Any]):
    """Batches of an epoch from a given step on. A broken image is replaced by the next one of its batch."""

    def __init__(self, dataset: ImageDataset, sampler: EpochSampler) -> None:
        assert isinstance(dataset.images, Stream)
        self.dataset, self.sampler, self.stream = dataset, sampler, dataset.images

    def __iter__(self) -> Iterator[ImageBatch]:
        try:
            yield from self._batches(self.sampler.epoch, self.sampler.start)
        except UnsmoothError as error:  # raised in a worker, it would come with the traceback of the worker
            yield collate([Item(None, -1, -1, {}, str(error))])

    def _batches(self, epoch: int, start: int) -> Iterator[ImageBatch]:
        sampler, size = self.sampler, self.sampler.batch_size
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        examples = self.stream.examples(derive_seed(ORDER, sampler.seed, epoch))
        if sampler.repeats > 1:
            examples = chain.from_iterable(repeat(example, sampler.repeats) for example in examples)
        self._skip(examples, start * size)
        for step in range(start, sampler.steps):
            if (step - start) % workers != worker:
                self._skip(examples, size)
                continue
            batch = list(islice(examples, size))
            self._check_length(len(batch), size)
            yield collate([self._item(batch, epoch, position) for position in sampler.positions(step)])

    def _item(self, batch: list[Example], epoch: int, position: int) -> Item:
        seed, skipped = self.sampler.item_seed(epoch, position), dict[str, str]()
        for offset in range(len(batch)):
            i = (position + offset) % len(batch)
            item = self._read(batch[i], position - position % len(batch) + i, seed)
            skipped |= item.skipped
            if item.image is not None or item.fatal:
                return item._replace(skipped=skipped)
        return Item(None, -1, position, skipped, f"{self.stream.name}: all {len(batch)} images of a batch are broken")

    def _read(self, example: Example, index: int, seed: int) -> Item:
        classes = self.stream.num_classes
        if classes and not 0 <= example.label < classes:
            reason = f"{example.name} has label {example.label}, but there are {classes} classes (0 to {classes - 1})"
            return Item(None, -1, index, {}, f"{self.stream.name}: {reason}")
        try:
            return Item(self.dataset.to_tensor(example.load(), seed), example.label, index, {})
        except (ImageReadError, OSError) as error:
            if self.dataset.strict:
                return Item(None, -1, index, {}, self.dataset.strict_error(example.name, error))
            return Item(None, -1, index, {example.name: str(error)})

    def _skip(self, examples: Iterator[Example], count: int) -> None:
        self._check_length(sum(1 for _ in islice(examples, count)), count)

    def _check_length(self, length: int, expected: int) -> None:
        if length < expected:
            raise UnsmoothError(
                f"{self.stream.name} ended before its {self.stream.count} images. Correct the number after |."
            )

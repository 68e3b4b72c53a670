"""Training batches of a stream: positions and seeds of any other data, for images that come in the stream's order.

Every process and every worker reads the whole stream and decodes only what is its own. So a batch does not depend on
how many there are, as with data that is read by place.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from unsmooth.data.images import Example, ImageReadError, Stream
from unsmooth.data.pictures import EpochSampler, ImageBatch, ImageDataset, Item, collate
from unsmooth.data.sampling import ORDER, derive_seed
from unsmooth.errors import UnsmoothError


class StreamTraining(IterableDataset[Any]):
    """The batches of an epoch, from a step on. A broken image gives its turn to the next one of its batch."""

    def __init__(self, pictures: ImageDataset, plan: EpochSampler) -> None:
        self.pictures, self.plan = pictures, plan

    def __iter__(self) -> Iterator[ImageBatch]:
        return _in_words(self._steps(self.plan.epoch, self.plan.start))

    def _steps(self, epoch: int, start: int) -> Iterator[ImageBatch]:
        wanted, stream = self.plan, _stream(self.pictures)
        worker, workers = _worker()
        examples = stream.examples(derive_seed(ORDER, wanted.seed, epoch))
        if wanted.repeats > 1:
            examples = chain.from_iterable(repeat(example, wanted.repeats) for example in examples)
        size = wanted.batch_size
        _forward(examples, start * size, stream)
        for step in range(start, wanted.steps):
            if (step - start) % workers != worker:
                _forward(examples, size, stream)
                continue
            batch = list(islice(examples, size))
            _check_length(len(batch), size, stream)
            yield collate([self._item(batch, epoch, position) for position in wanted.positions(step)])

    def _item(self, batch: list[Example], epoch: int, position: int) -> Item:
        seed, skipped = self.plan.item_seed(epoch, position), dict[str, str]()
        for turn in range(len(batch)):
            at = (position + turn) % len(batch)
            item = _read(self.pictures, batch[at], position - position % len(batch) + at, seed)
            skipped |= item.skipped
            if item.image is not None or item.fatal:
                return item._replace(skipped=skipped)
        name = self.pictures.images.name
        return Item(None, -1, position, skipped, f"{name}: all {len(batch)} images of a batch are broken")


def _read(pictures: ImageDataset, example: Example, place: int, seed: int) -> Item:
    stream = _stream(pictures)
    if stream.limit and not 0 <= example.label < stream.limit:
        reason = f"{example.name} has the label {example.label}, and there are {stream.limit} classes"
        return Item(None, -1, place, {}, f"{stream.name}: {reason} (0 to {stream.limit - 1})")
    try:
        return Item(pictures.tensor(example.picture(), seed), example.label, place, {})
    except (ImageReadError, OSError) as error:
        if pictures.strict:
            return Item(None, -1, place, {}, pictures.refusal(example.name, error))
        return Item(None, -1, place, {example.name: str(error)})


def _forward(examples: Iterator[Example], count: int, stream: Stream) -> None:
    _check_length(sum(1 for _ in islice(examples, count)), count, stream)


def _check_length(found: int, wanted: int, stream: Stream) -> None:
    if found < wanted:
        raise UnsmoothError(f"{stream.name} ended before its {stream.count} images: correct their number, behind a |")


def _in_words(batches: Iterator[ImageBatch]) -> Iterator[ImageBatch]:
    """What the stream cannot read, as a batch that says so: errors of a worker come with its whole traceback."""
    try:
        yield from batches
    except UnsmoothError as error:
        yield collate([Item(None, -1, -1, {}, str(error))])


def _stream(pictures: ImageDataset) -> Stream:
    assert isinstance(pictures.images, Stream)
    return pictures.images


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)

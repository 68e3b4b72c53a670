"""Batches for training and for evaluation, from images that are read when their turn comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from unsmooth.data.images import Stream
from unsmooth.data.items import ItemDataset
from unsmooth.data.pictures import EpochSampler, ImageBatch, ImageDataset, Key
from unsmooth.data.sampling import preserved_rng, share
from unsmooth.data.stream_batches import StreamTraining
from unsmooth.errors import UnsmoothError


class TrainingBatches:
    """The batches of one process, epoch by epoch, from any step of it on; one epoch at a time."""

    def __init__(self, items: ItemDataset, batch_size: int, seed: int, repeats: int = 0, workers: int = 0,
                 rank: int = 0, world: int = 1, pin: bool = False) -> None:  # fmt: skip
        self.plan = EpochSampler(items.count, batch_size, seed, repeats, share(batch_size, rank, world))
        if isinstance(items, ImageDataset) and isinstance(items.images, Stream):
            # Its workers start anew with each epoch, and so know where to begin.
            batches = StreamTraining(items, self.plan)
            self.loader = _loader(batches, workers, pin, batch_size=None, collate_fn=_as_it_is)
        else:
            self.loader = _by_place(items, self.plan, workers, pin)

    @property
    def steps(self) -> int:
        """Steps of an epoch; images that do not fill a batch wait for another epoch."""
        return self.plan.steps

    def from_step(self, epoch: int, start: int) -> Iterator[Any]:
        self.plan.epoch, self.plan.start = epoch, start
        return _raising(iter(self.loader))


def evaluation_batches(
    items: ItemDataset, batch_size: int, workers: int = 0, rank: int = 0, world: int = 1, pin: bool = False
) -> Any:
    """Every item once, in order; of several processes each takes a part, and none takes one twice."""
    mine = list(range(rank, items.count, world))
    keys: list[list[Key]] = [[(i, None) for i in mine[at : at + batch_size]] for at in range(0, len(mine), batch_size)]
    return _Evaluation(_by_place(items, keys, workers, pin))


class _Evaluation:
    """Batches that can be gone through again."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return _raising(iter(self.loader))

    def __len__(self) -> int:
        return len(self.loader)


def _raising(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches; what stops a worker is said here. Random numbers of this process stay as they are."""
    while True:
        with preserved_rng():
            batch = next(batches, None)
        if batch is None:
            return
        if batch.fatal:
            del batches  # or the error's traceback keeps the workers
            raise UnsmoothError(batch.fatal)
        yield batch


def _loader(dataset: Any, workers: int, pin: bool, **how: Any) -> Any:
    return DataLoader(
        dataset, num_workers=workers, pin_memory=pin, generator=torch.Generator(), **how,
        # The pictures of a data set are functions, which only a fork can hand on.
        multiprocessing_context="fork" if workers else None,
    )  # fmt: skip


def _by_place(items: ItemDataset, keys: Any, workers: int, pin: bool) -> Any:
    return _loader(items, workers, pin, batch_sampler=keys, collate_fn=items.collate, persistent_workers=workers > 0)


def _as_it_is(batch: ImageBatch) -> ImageBatch:
    return batch

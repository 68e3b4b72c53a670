"""Data loaders for training and for evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from unsmooth.data.datasets import EpochSampler, ImageBatch, ImageDataset, Key
from unsmooth.data.images import Stream
from unsmooth.data.items import ItemDataset
from unsmooth.data.sampling import evaluation_share, preserved_rng, process_share
from unsmooth.data.stream_batches import StreamBatches
from unsmooth.errors import UnsmoothError


class TrainingBatches:
    """Training batches of one process, one epoch at a time, from any step on.

    Args:
        items: Dataset.
        batch_size: Images per batch over all processes.
        seed: Seed of order and augmentation.
        repeats: Copies of each drawn image (repeated augmentation); 0: off.
        workers: Worker processes that load images.
        rank: Index of this process.
        world: Number of processes.
        pin: Whether to pin memory, for GPUs.
    """

    def __init__(self, items: ItemDataset, batch_size: int, seed: int, repeats: int = 0, workers: int = 0,
                 rank: int = 0, world: int = 1, pin: bool = False) -> None:  # fmt: skip
        self.stream: StreamBatches | None = None
        self.sampler = EpochSampler(items.count, batch_size, seed, repeats, process_share(batch_size, rank, world))
        if isinstance(items, ImageDataset) and isinstance(items.images, Stream):
            # Not persistent: new workers read the epoch and the start from the sampler.
            self.stream = StreamBatches(items, self.sampler, workers)
            self.loader = _loader(self.stream, workers, pin, batch_size=None, collate_fn=_identity)
        else:
            self.loader = _indexed_loader(items, self.sampler, workers, pin)

    @property
    def steps(self) -> int:
        """Steps per epoch. Images that do not fill a batch are left out; which ones differs between epochs."""
        return self.sampler.steps

    def from_step(self, epoch: int, start: int) -> Iterator[Any]:
        """Batches of an epoch from a step on."""
        self.sampler.epoch, self.sampler.start = epoch, start
        batches = _raise_fatal(iter(self.loader))
        return batches if self.stream is None else self.stream.merged(batches)


class EvaluationBatches:
    """Batches that can be iterated several times."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return _raise_fatal(iter(self.loader))

    def __len__(self) -> int:
        return len(self.loader)


def evaluation_batches(
    items: ItemDataset, batch_size: int, workers: int = 0, rank: int = 0, world: int = 1, pin: bool = False,
    in_order: bool = False,
) -> EvaluationBatches:  # fmt: skip
    """Every item once.

    With several processes, each takes every `world`-th item, or its part of a stream. Each worker of a process reads
    its own part of a stream, so the same batches come in another order than with one worker.

    Args:
        items: Dataset.
        batch_size: Images per batch.
        workers: Worker processes that load images.
        rank: Index of this process.
        world: Number of processes.
        pin: Whether to pin memory, for GPUs.
        in_order: Whether batches must be in order. A stream is then read by at most one worker.
    """
    stream = isinstance(items, ImageDataset) and items.images.sequential
    indices = evaluation_share(range(items.count), rank, world, contiguous=stream)
    keys: list[list[Key]] = [
        [(i, None) for i in indices[start : start + batch_size]] for start in range(0, len(indices), batch_size)
    ]
    if stream and in_order:
        workers = min(workers, 1)
    elif stream:
        keys = _in_parts(keys, workers)
    return EvaluationBatches(_indexed_loader(items, keys, workers, pin))


def _in_parts(keys: list[list[Key]], workers: int) -> list[list[Key]]:
    """Batches in such an order that each worker, which is given every `workers`-th one, reads a contiguous part."""
    dealt, rest = list(keys), iter(keys)
    for worker in range(workers):
        dealt[worker::workers] = islice(rest, len(keys[worker::workers]))
    return dealt


def _raise_fatal(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches and raise their fatal errors; loading leaves the global random state unchanged."""
    while True:
        try:
            with preserved_rng():
                batch = next(batches, None)
        except RuntimeError as error:
            if all(worker.is_alive() for worker in getattr(batches, "_workers", ())):
                raise
            raise UnsmoothError(
                "a process that loads images died, possibly out of memory. Repeat the command "
                "with fewer workers (--workers)."
            ) from error
        if batch is None:
            return
        if batch.fatal:
            del batches  # otherwise the traceback would keep the workers alive
            raise UnsmoothError(batch.fatal)
        yield batch


def _loader(dataset: Any, workers: int, pin: bool, **options: Any) -> Any:
    return DataLoader(
        dataset, num_workers=workers, pin_memory=pin, generator=torch.Generator(), **options,
        # Datasets hold closures, which cannot be pickled for spawned workers.
        multiprocessing_context="fork" if workers else None,
    )  # fmt: skip


def _indexed_loader(items: ItemDataset, keys: Any, workers: int, pin: bool) -> Any:
    return _loader(items, workers, pin, batch_sampler=keys, collate_fn=items.collate, persistent_workers=workers > 0)


def _identity(batch: ImageBatch) -> ImageBatch:
    return batch

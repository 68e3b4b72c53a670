"""Protocols of datasets and batches, which every task implements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class Batch(Protocol):
    """Items that a collate function combined.

    Attributes:
        images: Images as the host takes them.
        skipped: Reasons by name of broken items that were skipped.
        fatal: Error that must stop the run, or "". Workers report errors this way, since a raised one would come
            with the traceback of the worker.
    """

    images: Tensor
    skipped: dict[str, str]
    fatal: str

    def __len__(self) -> int: ...
    def to(self, device: torch.device) -> Self: ...
    def microbatches(self, count: int) -> Sequence[Self]: ...
    def pin_memory(self) -> Self: ...


class TensorBatch:
    """Base of batches that are dataclasses of tensors with one entry per item."""

    images: Tensor
    skipped: dict[str, str]
    fatal: str

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> Self:
        return self._map(lambda value: value.to(device, non_blocking=True))

    def microbatches(self, count: int) -> list[Self]:
        """Split into at most `count` batches, for gradient accumulation."""
        chunks = {name: value.chunk(count) for name, value in self._tensors().items()}
        return [
            dataclasses.replace(self, **{name: chunk[i] for name, chunk in chunks.items()})  # type: ignore[type-var]
            for i in range(len(chunks["images"]))
        ]

    def pin_memory(self) -> Self:
        """Called by the data loader, which does not know the class."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        return dataclasses.replace(self, **{name: change(value) for name, value in self._tensors().items()})  # type: ignore[type-var]

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


class ItemDataset(Protocol):
    """Dataset of items, read by index and seed.

    With a seed, an item is augmented, and a broken one is replaced by the next. Without a seed, it is skipped.
    """

    @property
    def count(self) -> int: ...
    @property
    def name(self) -> str: ...
    def __getitem__(self, key: tuple[int, int | None]) -> Any: ...
    def collate(self, items: list[Any]) -> Batch: ...

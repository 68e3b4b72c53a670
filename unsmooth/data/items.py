"""ItemDataset and batches: what every loader yields, whatever the task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class Batch(Protocol):
    """What a collate function makes of items. It stays whole on its way: to a device, into parts."""

    images: Tensor  # as the host takes them
    skipped: dict[str, str]  # broken items that were left out: name and reason
    fatal: str  # why the run cannot go on, or nothing: a worker cannot raise in words

    def __len__(self) -> int: ...
    def to(self, device: torch.device) -> Self: ...
    def parts(self, count: int) -> Sequence[Self]: ...
    def pin_memory(self) -> Self: ...


class TensorBatch:
    """What a dataclass of tensors, each with one entry for an item, needs to be a batch."""

    images: Tensor
    skipped: dict[str, str]
    fatal: str

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> Self:
        return self._each(lambda value: value.to(device, non_blocking=True))

    def parts(self, count: int) -> list[Self]:
        chunks = {name: value.chunk(count) for name, value in self._tensors().items()}
        return [
            dataclasses.replace(self, **{name: chunk[i] for name, chunk in chunks.items()})  # type: ignore[type-var]
            for i in range(len(chunks["images"]))
        ]

    def pin_memory(self) -> Self:
        """For the loader, which pins no class that it does not know."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        return dataclasses.replace(self, **{name: change(value) for name, value in self._tensors().items()})  # type: ignore[type-var]

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


class ItemDataset(Protocol):
    """Data that is read by place. With a seed an item is augmented, and a broken one gives its turn to the next."""

    @property
    def count(self) -> int: ...
    @property
    def name(self) -> str: ...
    def __getitem__(self, key: tuple[int, int | None]) -> Any: ...
    def collate(self, items: list[Any]) -> Batch: ...

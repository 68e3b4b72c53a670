"""Order of images and seeds of random numbers, as pure functions of the seed, the epoch and the position.

No random state is carried from one step to the next. So a resumed run equals an uninterrupted one, and results depend
neither on the number of workers nor on the number of processes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

ORDER, ITEM, STEP, MIX = range(4)  # streams of random numbers


def derive_seed(*integers: int) -> int:
    """Seed of 63 bits that depends on every integer (0 to 2^64 − 1) and on their number."""
    # Two words per integer: SeedSequence itself pads with zeros and does not separate its integers.
    words = np.array((len(integers), *integers), dtype=np.uint64).view(np.uint32)
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0]) >> 1


def seed_everything(seed: int, device: torch.device | None = None) -> None:
    """Seed the global generators of Python, NumPy and torch, which timm's augmentations use."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type != "cpu":
        torch.manual_seed(seed)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore the global generators of Python, NumPy and torch (CPU) on exit."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)


def epoch_order(images: int, seed: int, epoch: int, repeats: int = 0) -> list[int]:
    """Indices of one epoch in order; with repeats, each drawn image occurs `repeats` times in a row."""
    generator = torch.Generator().manual_seed(derive_seed(ORDER, seed, epoch))
    order = torch.randperm(images, generator=generator)
    if repeats > 1:
        order = order.repeat_interleave(repeats)[:images]
    return order.tolist()


def process_share(batch_size: int, rank: int, world: int) -> list[int]:
    """Positions in a batch that belong to a process: a slice from the front, and its mirror image from the back.

    Mixup and cutmix pair the first image with the last, the second with the last but one, and so on. This split keeps
    each pair in one process.
    """
    half = batch_size // world // 2
    front = list(range(rank * half, (rank + 1) * half))
    middle = list(range(half * world, batch_size - half * world))[rank::world]
    return front + middle + [batch_size - 1 - position for position in reversed(front)]


def evaluation_share(items: Sequence[int], rank: int, world: int, contiguous: bool) -> Sequence[int]:
    """Items that a process evaluates: every `world`-th one, or a contiguous part; the first is in the first process."""
    if not contiguous:
        return items[rank::world]
    start, end = (-(-len(items) * r // world) for r in (rank, rank + 1))
    return items[start:end]

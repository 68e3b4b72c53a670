"""Which image comes when, and which random numbers it meets: functions of the place in a run, and of nothing else.

No random state outlives a step. So a run that was cut goes on as if nothing had happened, the number of workers does
not matter, and several processes see what one would see.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

MASK = 2**64 - 1
ORDER, ITEM, STEP, MIX = range(4)  # streams of random numbers


def derive_seed(*place: int) -> int:
    """63 bits that depend on every number given (splitmix64's finaliser, once for each)."""
    z = 0
    for number in place:
        z = (z + number + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
    return z >> 1


def seed_everything(seed: int, device: torch.device | None = None) -> None:
    """Set Python's, NumPy's and torch's generators, which timm's augmentations draw from."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type != "cpu":
        torch.manual_seed(seed)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """What is done inside leaves Python's, NumPy's and torch's generators (of the CPU) as they were."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)


def epoch_order(images: int, seed: int, epoch: int, repeats: int = 0) -> list[int]:
    """The images of one epoch in order; with repeats, each chosen image comes so many times in a row."""
    generator = torch.Generator().manual_seed(derive_seed(ORDER, seed, epoch))
    order = torch.randperm(images, generator=generator)
    if repeats > 1:
        order = order.repeat_interleave(repeats)[:images]
    return order.tolist()


def share(batch: int, rank: int, world: int) -> list[int]:
    """The places in a batch that a process takes: a slice from the front and its mirror from the back.

    Mixup and cutmix pair the first image with the last, the second with the last but one: so pairs stay in one process.
    """
    half = batch // world // 2
    front = list(range(rank * half, (rank + 1) * half))
    middle = list(range(half * world, batch - half * world))[rank::world]
    return front + middle + [batch - 1 - place for place in reversed(front)]

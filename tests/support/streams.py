"""A stream that notes what is read of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image

from unsmooth.data.images import Example, ImageReadError, Shards, Stream

LENGTHS = (7, 12, 9, 10, 8, 11, 10, 5)


def noted_stream(
    note: Callable[[int, int], object], lengths: tuple[int, ...] = LENGTHS, known: bool = True,
    broken: tuple[tuple[int, int], ...] = (),
) -> Stream:  # fmt: skip
    """A stream of noise, which calls `note` with the shard and the position in it of each image that is read."""

    def load(i: int, n: int) -> Image.Image:
        if (i, n) in broken:
            raise ImageReadError("it is broken")
        return Image.fromarray(np.random.default_rng((i, n)).integers(0, 256, (12, 12, 3), dtype=np.uint8))

    def shard(i: int) -> Iterator[Example]:
        for n in range(lengths[i]):
            note(i, n)
            yield Example(lambda n=n: load(i, n), n % 2, f"{i}/{n}")  # type: ignore[misc]

    def examples(seed: int | None) -> Iterator[Example]:
        return (example for i in range(len(lengths)) for example in shard(i))

    shards = Shards(len(lengths), shard, lengths if known else None)
    return Stream("counted", sum(lengths), examples, num_classes=2, shards=shards)

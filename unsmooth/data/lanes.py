"""Order of a stream in training: lanes of shards, each of which fills the same positions of every batch.

The shards of an epoch are shuffled and cut into lanes of equal length. A lane is read in blocks, whose examples are
shuffled. A process needs the lanes of its own positions in a batch, and so reads no shard of another process. Lanes
depend on the shards and on the batch size only, so batches do not depend on the number of processes or workers. If the
lengths of shards are known, each example occurs at most once per epoch, and reading begins at the block of any step.
Otherwise a lane that is at its end begins again, and its shards are read from the start of the epoch without decoding.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain, count, islice, repeat

from unsmooth.data.images import Example, Shards, Stream
from unsmooth.data.sampling import ORDER, derive_seed

BLOCK = 2048  # encoded examples in the blocks of all lanes; about 250 MB for ImageNet
LEAST_BLOCK = 64  # in the block of one lane
MOST = 256  # lanes
LEAST_POSITIONS = 8  # of a lane in a batch, so that broken images can be replaced


class Lanes:
    """The lanes of a stream.

    Args:
        stream: The stream.
        batch_size: Images per batch over all processes.
        steps: Batches per epoch.
        repeats: Copies of each drawn image in a row; 0 or 1: none.
    """

    def __init__(self, stream: Stream, batch_size: int, steps: int, repeats: int = 0) -> None:
        self.stream, self.steps, self.repeats = stream, steps, max(1, repeats)
        self.shards = stream.shards or Shards(1, lambda i: stream.examples(None), None)
        self.count = _lane_count(self.shards.count, batch_size)
        half = max(1, batch_size // 2)
        # Mirrored positions share a lane, as they share a process (`unsmooth.data.sampling.process_share`).
        self.lane_of = [min(p, batch_size - 1 - p, half - 1) * self.count // half for p in range(batch_size)]
        self.positions = [[p for p in range(batch_size) if self.lane_of[p] == lane] for lane in range(self.count)]
        self.block = max(LEAST_BLOCK, BLOCK // self.count)

    def examples(self, lane: int, seed: int, epoch: int, start: int) -> Iterator[Example]:
        """Examples of a lane from a step on, as many per step as it has positions."""
        first = start * len(self.positions[lane])
        drawn, copies = divmod(first, self.repeats)
        block, rest = divmod(drawn, self.block)
        rows = self._rows(lane, seed, epoch, block * self.block)
        blocks = (_shuffled(islice(rows, self.block), derive_seed(ORDER, seed, epoch, lane, b)) for b in count(block))
        examples = chain.from_iterable(iter(lambda: next(blocks), []))
        repeated = chain.from_iterable(repeat(example, self.repeats) for example in islice(examples, rest, None))
        return islice(repeated, copies, None)

    def _rows(self, lane: int, seed: int, epoch: int, start: int) -> Iterator[Example]:
        """Examples of a lane in the order of its shards, from one of them on."""
        order = list(range(self.shards.count))
        random.Random(derive_seed(ORDER, seed, epoch)).shuffle(order)
        if self.shards.lengths is None:
            own = order[lane :: self.count]
            once = (example for shard in own for example in self.shards.read(shard))
            return islice(once if self.count == 1 else _cycle(self.shards, own), start, None)
        size = -(-self.steps * len(self.positions[lane]) // self.repeats)  # examples of this lane in an epoch
        ends = list(accumulate(self.shards.lengths[shard] for shard in order))
        return islice(_from(self.shards, order, ends, lane * size + start), size - start)


def shards_from(shards: Shards, index: int) -> Iterator[Example]:
    """Examples in order from one of them on. Shards before it are not read; their lengths must be known."""
    assert shards.lengths is not None
    order = list(range(shards.count))
    return _from(shards, order, list(accumulate(shards.lengths)), index)


def _from(shards: Shards, order: list[int], ends: list[int], index: int) -> Iterator[Example]:
    first = bisect_right(ends, index)
    skipped = index - (ends[first - 1] if first else 0)
    for shard in order[first:]:
        yield from islice(shards.read(shard), skipped, None)
        skipped = 0


def _cycle(shards: Shards, own: list[int]) -> Iterator[Example]:
    """Examples of some shards, again and again, unless they have none."""
    while True:
        any_read = False
        for shard in own:
            for example in shards.read(shard):
                any_read = True
                yield example
        if not any_read:
            return


def _shuffled(rows: Iterator[Example], seed: int) -> list[Example]:
    block = list(rows)
    random.Random(seed).shuffle(block)
    return block


def _lane_count(shards: int, batch_size: int) -> int:
    """The largest number of lanes with equally many positions that shards and batch size allow."""
    if batch_size % 2:
        return 1
    most = min(shards, MOST, batch_size // LEAST_POSITIONS)
    return max((n for n in range(1, most + 1) if (batch_size // 2) % n == 0), default=1)

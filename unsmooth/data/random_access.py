"""Random access to any source of images."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from unsmooth.data.images import Example, Images, ImageSource, Stream, missing_count
from unsmooth.data.lanes import shards_from
from unsmooth.errors import UnsmoothError


def as_images(source: ImageSource) -> Images:
    """Random access to a source.

    A stream is read forward. An index in another shard begins there if the lengths of its shards are known. Otherwise,
    what comes before an index is read too, and a lower index than the last one restarts from the beginning.
    """
    if isinstance(source, Images):
        return source
    if not source.count:
        raise missing_count(source)
    stream = _Forward(source)
    return Images(source.name, source.count, lambda i: stream.read(i).load(), lambda i: stream.read(i).name,
                  (lambda i: stream.read(i).label) if source.labelled else None, source.classes,
                  sequential=True)  # fmt: skip


class _Forward:
    """A stream and the position in it."""

    def __init__(self, source: Stream) -> None:
        self.source = source
        self.shards = source.shards if source.shards is not None and source.shards.lengths is not None else None
        self.ends = list(accumulate(self.shards.lengths or ())) if self.shards is not None else []
        self._begin(0)

    def _begin(self, index: int) -> None:
        """Read on from an index, or from the beginning."""
        self.example: Example | None = None
        self.rest: Iterator[Example]
        if self.shards is not None:
            self.position, self.rest = index - 1, shards_from(self.shards, index)
        else:
            self.position, self.rest = -1, self.source.examples(None)
        self.process = os.getpid()

    def read(self, index: int) -> Example:
        other = bool(self.ends) and bisect_right(self.ends, index) > bisect_right(self.ends, self.position + 1)
        if index < self.position or other or self.process != os.getpid():  # a fork shares the position in the file
            self._begin(index)
        while self.position < index:
            self.position, self.example = self.position + 1, next(self.rest, None)
            if self.example is None:
                source, count = self.source, min([self.position, *self.ends[-1:]])
                raise UnsmoothError(f"{source.name} has {count} images, fewer than the expected {source.count}")
        assert self.example is not None
        return self.example

"""Lengths and labels of local shards, which one process of a machine counts and keeps in the user's cache directory.

An index is a JSON file named by a digest of the paths, sizes and times of its shards, so shards that changed are
counted again. A process that counts locks it; others wait and read it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, NamedTuple


class ShardIndex(NamedTuple):
    """Number of examples of each shard, and the set of all labels."""

    lengths: tuple[int, ...]
    labels: frozenset[int]


def cache_folder() -> Path:
    """The folder of indices."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "unsmooth" / "shards"


def shard_index(paths: Sequence[str], key: str, labels_of: Callable[[str], Iterable[int]]) -> ShardIndex:
    """The index of shards, from the cache or counted.

    Args:
        paths: Local files.
        key: Name of the labels.
        labels_of: Reads the label of each example of a shard.
    """
    with ExitStack() as stack:
        file: IO[str] | None = None
        # Without a home directory, write access or locks, as on some network file systems, each process counts.
        with suppress(ImportError, OSError, RuntimeError):
            file = stack.enter_context(_locked(cache_folder() / f"{_digest(paths, key)}.json"))
        known = None if file is None else _read(file, len(paths))
        if known is not None:
            return known
        labels = [list(labels_of(path)) for path in paths]
        index = ShardIndex(tuple(map(len, labels)), frozenset(label for shard in labels for label in shard))
        if file is not None:
            with suppress(OSError):  # a full disk, which may show at the end
                file.truncate(0)
                json.dump({"lengths": index.lengths, "labels": sorted(index.labels)}, file)
                file.close()
        return index


def _digest(paths: Sequence[str], key: str) -> str:
    shards = [(os.path.abspath(path), (about := os.stat(path)).st_size, about.st_mtime_ns) for path in paths]
    return hashlib.sha256(json.dumps([key, shards]).encode()).hexdigest()[:32]


def _locked(path: Path) -> IO[str]:
    """A file that is open to read and append, after no other process has it open."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX)
    except OSError:
        file.close()
        raise
    return file


def _read(file: IO[str], shards: int) -> ShardIndex | None:
    """The index in a file; None if it is empty, or not complete because its process was killed."""
    file.seek(0)
    try:
        content = json.load(file)
        index = ShardIndex(tuple(map(int, content["lengths"])), frozenset(map(int, content["labels"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return index if len(index.lengths) == shards else None

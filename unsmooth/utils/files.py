"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError


def replace_files(writers: Mapping[Path, Callable[[Path], Any]]) -> None:
    """Write every file beside its place, and only once all are on the disk, put them there."""
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in writers}
    try:
        for path, write in writers.items():
            write(temporary[path])
            with temporary[path].open("rb+") as file:
                os.fsync(file.fileno())
        for path, written in temporary.items():
            os.replace(written, path)
        for folder in {path.parent for path in writers}:
            _sync_folder(folder)
    finally:
        for path in temporary.values():
            with suppress(OSError):  # where nothing can be written, there is nothing to take away
                path.unlink(missing_ok=True)


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_files({path: lambda temporary: temporary.write_bytes(content)})
    except OSError as error:
        raise UnsmoothError(f"cannot write {path}: {error.strerror or error}") from error


def _sync_folder(folder: Path) -> None:
    """Have the new names on the disk too; not every file system lets a folder be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

"""Atomic writing of files."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError


def replace_files(writers: Mapping[Path, Callable[[Path], Any]]) -> None:
    """Write several files: each to a temporary file first, then rename all."""
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
            with suppress(OSError):  # a read-only directory has no temporary files
                path.unlink(missing_ok=True)


def write(path: Path, content: bytes | str) -> None:
    """Write a file atomically, and create its directory. What is not UTF-8 in a text, as in a file name, is escaped."""
    if isinstance(content, str):
        content = encode(content)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_files({path: lambda temporary: temporary.write_bytes(content)})
    except OSError as error:
        raise UnsmoothError(f"cannot write {path}: {error.strerror or error}") from error


def read_toml(path: Any, what: str) -> dict[str, Any]:
    """Content of a TOML file, which is a path or a resource of a package; `what` it is, for the error."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise UnsmoothError(f"cannot read the {what} {path}: lists are nested too deeply") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnsmoothError(f"cannot read the {what} {path}: {reason}") from error


def encode(text: str) -> bytes:
    """Text as UTF-8. Bytes of file names that are not UTF-8 become \\udcNN, which JSON reads back unchanged."""
    return text.encode("utf-8", "backslashreplace")


def _sync_folder(folder: Path) -> None:
    """Sync the new names to the disk; not every file system supports that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

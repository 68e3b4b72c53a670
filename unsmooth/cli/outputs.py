"""Where commands write: checked before the work, and never over a file that unsmooth did not write."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from unsmooth.errors import UnsmoothError

# What a file of unsmooth contains, by suffix.
MARKS = {
    ".json": rb'"kind":\s*"{kind}"',
    ".html": rb'class="brand">unsmooth',
    ".png": rb"unsmooth",
    ".svg": rb"unsmooth",
    ".pdf": rb"unsmooth",
}
# The same for figures, as matplotlib writes it.
FIGURE_METADATA = {"png": {"Software": "unsmooth"}, "svg": {"Creator": "unsmooth"}, "pdf": {"Creator": "unsmooth"}}


def check_directory(directory: Path) -> None:
    """Raise if a directory cannot be created or written to."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists() or path.is_symlink())
    if not existing.is_dir():
        raise UnsmoothError(f"{existing} is a file. Use a directory as --out.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UnsmoothError(f"{existing} is not writable. Use another --out.")


def check_replaceable(paths: Iterable[Path], kind: str) -> None:
    """Raise if a file exists that is not a result of this kind, or a page or figure of unsmooth."""
    for path in paths:
        if not path.exists():
            continue
        mark = MARKS[path.suffix].replace(b"{kind}", kind.encode())
        try:
            ours = re.search(mark, path.read_bytes()) is not None
        except OSError as error:
            raise UnsmoothError(f"cannot write {path}: {error.strerror}") from error
        if not ours:
            raise UnsmoothError(f"{path} is not a {kind} of unsmooth and would be overwritten. Use another --out.")

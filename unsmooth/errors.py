"""Errors: one line that says what happened and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LISTED = 30  # an error lists at most this many known names


class UnsmoothError(ValueError):
    """A request that cannot be fulfilled. The model is unchanged."""


class NotApplicable(UnsmoothError):
    """A remedy does not fit a host, or a block of it."""


class Interrupted(UnsmoothError):
    """Training was asked to stop. What is done is saved, and the same command resumes."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the name of its class if it has no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def missing_package(what: str, package: str, extra: str) -> UnsmoothError:
    """The error for an optional package that is not installed: names the extra that installs it."""
    return UnsmoothError(f"{what} needs {package}. pip install 'unsmooth[{extra}]'")


def unknown(what: str, name: str, known: Iterable[str]) -> UnsmoothError:
    """The error for an unknown name: suggests the nearest known name and lists all (the nearest three of many)."""
    known = sorted(known)
    if len(known) > LISTED:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
        return UnsmoothError(f"unknown {what} {name!r}. Nearest of {len(known)}: {', '.join(near)}.")
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listing = f" Known: {', '.join(known)}." if known else " There are none."
    return UnsmoothError(f"unknown {what} {name!r}.{hint}{listing}")

"""Errors that say what is wrong and what to do about it, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LISTED = 30  # names; more than that help nobody


class UnsmoothError(ValueError):
    """A mistake in what was asked for. The model is as it was."""


class NotApplicable(UnsmoothError):
    """A remedy makes no sense on this host, or on this block of it."""


class Interrupted(UnsmoothError):
    """Training was asked to stop. What is done is saved, and the same command resumes."""


def unknown(what: str, name: str, known: Iterable[str]) -> UnsmoothError:
    """The error for a name that does not exist: the nearest one first, then all of them (of very many, three)."""
    known = sorted(known)
    if len(known) > LISTED:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
        return UnsmoothError(f"unknown {what} {name!r}. Nearest of {len(known)}: {', '.join(near)}.")
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listing = f" Known: {', '.join(known)}." if known else " There are none."
    return UnsmoothError(f"unknown {what} {name!r}.{hint}{listing}")

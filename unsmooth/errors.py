"""Errors that say what is wrong and what to do about it, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnsmoothError(ValueError):
    """A mistake in what was asked for. The model is as it was."""


class Refusal(UnsmoothError):
    """A remedy makes no sense on this host, or on this block of it."""


def unknown(what: str, name: str, known: Iterable[str]) -> UnsmoothError:
    """The error for a name that does not exist: the nearest one first, then all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listing = f" Known: {', '.join(known)}." if known else " There are none."
    return UnsmoothError(f"unknown {what} {name!r}.{hint}{listing}")

"""Errors: one line that says what happened and what to do."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

LISTED = 30  # an error lists at most this many known names


class UnsmoothError(ValueError):
    """Base class of errors raised for invalid input.

    The message says what happened and what to do; the model is unchanged.

    Example:
        >>> import unsmooth
        >>> try:
        ...     unsmooth.create_model("vit_tiny_patch16_224+atn_scale")
        ... except unsmooth.UnsmoothError as error:
        ...     print(str(error).split(" Known")[0])
        unknown remedy 'atn_scale'. Did you mean 'attn_scale'?
    """


class NotApplicable(UnsmoothError):
    """A remedy does not fit a host, or a block of it."""


class UnknownOption(UnsmoothError):
    """A host has no such option."""


class Interrupted(UnsmoothError):
    """Training was asked to stop. A checkpoint is saved, and the same command resumes the run."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the name of its class if it has no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


# Control characters, such as those that change the colour or the title of a terminal, bytes that are not UTF-8, and
# characters that change the direction of text.
HIDDEN = ("Cc", "Cs", "Cf")


def printable(text: str) -> str:
    """A name or message of others with everything escaped that would not be shown as a character."""
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape", "surrogatepass").decode()
        if unicodedata.category(char) in HIDDEN and char not in "\n\t"
        else char
        for char in text
    )


def missing_package(what: str, package: str, extra: str) -> UnsmoothError:
    """The error for an optional package that is not installed: names the extra that installs it."""
    return UnsmoothError(f"{what} needs {package}. pip install 'unsmooth[{extra}]'")


def unknown(what: str, name: str, known: Iterable[str], owner: str = "") -> UnsmoothError:
    """The error for an unknown name: suggests the nearest known name and lists all (the nearest three of many).

    With an owner, the message is "OWNER has no WHAT 'NAME'" instead of "unknown WHAT 'NAME'".
    """
    known = sorted(known)
    problem = f"{owner} has no {what} {name!r}." if owner else f"unknown {what} {name!r}."
    if len(known) > LISTED:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
        return UnsmoothError(f"{problem} Closest of {len(known)} names: {', '.join(near)}.")
    listing = f" Known: {', '.join(known)}." if known else " There are none."
    return UnsmoothError(f"{problem}{suggestion(name, known)}{listing}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the nearest known name, with a leading space; "" if no name is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""

"""Tables of rich as plain text."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType


def plain_text(pieces: Iterable[RenderableType], width: int = 100) -> str:
    """Text without colours or trailing spaces."""
    file = io.StringIO()
    console = Console(file=file, width=width, no_color=True, force_terminal=False)
    for piece in pieces:
        console.print(piece, highlight=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

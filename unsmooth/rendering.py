"""The place where the rooms `results` and `report` meet: who shows results.

Results hold data, and ask the renderer for their texts, pages and tables. The renderer is `unsmooth.report.renderer`.
`unsmooth/__init__.py` connects it, and it is imported on first use. Results know nothing of the room above them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


class Renderer(Protocol):
    """Shows results of every type."""

    def text(self, result: Any) -> str:
        """The result as a table of text."""

    def report(self, result: Any, format: str, *context: Any) -> bytes:
        """The page of a result ("html"), or its figure as png, svg or pdf.

        `context` is what the page shows besides: other diagnoses, or the folder of the figures of a reproduction.
        """

    def frame(self, result: Any, detailed: bool = False) -> pandas.DataFrame:
        """The result as a pandas table; `detailed`: with a row per run or measurement, for those that have them."""

    def plot(
        self, diagnoses: Sequence[Any], names: Sequence[str], vital: str, parts: str | Sequence[str] | None,
        ax: Axes | None,
    ) -> Axes:  # fmt: skip
        """A vital of diagnoses by block."""


_connected: list[Callable[[], Renderer]] = []


def connect(load: Callable[[], Renderer]) -> None:
    """Set the function that imports the renderer."""
    _connected[:] = [load]


def renderer() -> Renderer:
    """The renderer that is connected."""
    return _connected[0]()

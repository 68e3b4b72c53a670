"""What an evaluation holds: one value that goes to JSON and back without loss, and prints as a table."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from rich.console import Console

from unsmooth.errors import unknown
from unsmooth.report.evaluation_table import _percent, as_rich
from unsmooth.results.base import Result

if TYPE_CHECKING:
    from unsmooth.tasks.classification.scores import Scores


class Evaluation(Result):
    """Scores of one model on some tests. `evaluation["validation"]` is a row; `data` the JSON value itself.

    `scores` has them by image, by test, for as long as the value lives: they do not go to JSON.
    """

    kind = "evaluation"
    command = "unsmooth evaluate"

    def __init__(self, data: dict[str, Any], scores: dict[str, Scores] | None = None) -> None:
        super().__init__(data)
        self.scores = scores or {}

    def keys(self) -> list[str]:
        return [row["test"] for row in self.data["rows"]]

    def __getitem__(self, test: str) -> dict[str, Any]:
        for row in self.data["rows"]:
            if row["test"] == test:
                return dict(row)
        raise unknown("test of this evaluation", test, self.keys())

    def __str__(self) -> str:
        file = io.StringIO()
        console = Console(file=file, width=100, no_color=True, force_terminal=False)
        for piece in as_rich(self.data):
            console.print(piece, highlight=False)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    def __repr__(self) -> str:
        shown = ", ".join(f"{row['test']} {_percent(row['top1'])}" for row in self.data["rows"])
        return f"Evaluation({self.data['model']['name']!r}: {shown})"

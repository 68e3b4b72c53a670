"""What came out of an experiment: published beside measured, and what differs in scale; to JSON, to a table."""

from __future__ import annotations

from pathlib import Path

from unsmooth.report.reproduction_table import as_markdown
from unsmooth.results.base import Result

RESULT, TABLE = "paper.json", "paper.md"


class Reproduction(Result):
    kind = "paper"
    command = "unsmooth paper"

    def __str__(self) -> str:
        return as_markdown(self.data)

    def write(self, folder: Path) -> list[Path]:
        """paper.json and paper.md in a folder."""
        from unsmooth.utils.files import write

        self.to_json(folder / RESULT)
        write(folder / TABLE, as_markdown(self.data).encode())
        return [folder / RESULT, folder / TABLE]

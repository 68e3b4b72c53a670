"""What a bench holds: one value that goes to JSON and back without loss, and prints as tables of 80 columns."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from unsmooth.errors import unknown
from unsmooth.report.bench_table import _energy, as_rich
from unsmooth.results.base import Result


class Bench(Result):
    """Costs of some models. `bench["SPEC"]` is a row; `data` the JSON value itself."""

    kind = "bench"
    command = "unsmooth bench"

    def keys(self) -> list[str]:
        return [row["name"] for row in self.data["rows"]]

    def __getitem__(self, name: str) -> dict[str, Any]:
        for row in self.data["rows"]:
            if row["name"] == name:
                return dict(row)
        raise unknown("model of this bench", name, self.keys())

    def __str__(self) -> str:
        file = io.StringIO()
        console = Console(file=file, width=80, no_color=True, force_terminal=False)
        for piece in as_rich(self.data):
            console.print(piece, highlight=False)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    def __repr__(self) -> str:
        shown = ", ".join(f"{row['name']} {_energy(row, self.data['precision'])}" for row in self.data["rows"])
        return f"Bench({shown})"

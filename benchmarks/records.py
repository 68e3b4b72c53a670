"""What a benchmark measured: goals beside values, and tables, as results/bench/NAME.json.

    python -m benchmarks.records    # the goals that the records miss, and the profiles that explain them

`tools/bench_tables.py` copies the tables to docs/.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tools import growth_page

FOLDER = Path(__file__).parent.parent / "results" / "bench"


@dataclass(frozen=True)
class Goal:
    """A measured value, and the least it should be, or the most."""

    name: str
    value: float
    goal: float
    at_most: bool = False
    unit: str = ""
    profile: str = ""
    """Where the time goes if it is missed: a name for `profiles.py`."""

    @property
    def reached(self) -> bool:
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    @property
    def wanted(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.goal:g}{self.unit}"

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.3g}{self.unit} (goal: {self.wanted}, {self.state})"

    @property
    def state(self) -> str:
        return "reached" if self.reached else "missed"

    @property
    def cell(self) -> str:
        """The goal in a table."""
        return self.wanted if self.reached else f"{self.wanted}, missed"


class Record:
    """The goals and tables of one benchmark, printed as they come."""

    def __init__(self, name: str, conditions: str) -> None:
        self.name, self.conditions = name, conditions
        self.goals: list[Goal] = []
        self.tables: dict[str, dict[str, Any]] = {}

    def goal(self, name: str, value: float, goal: float, **more: Any) -> Goal:
        """Keep a value with its goal, and print it."""
        one = Goal(name, round(value, 5), goal, **more)
        self.goals.append(one)
        print(one, flush=True)
        return one

    def table(self, key: str, head: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> None:
        """Keep a table, and print it as Markdown."""
        self.tables[key] = {"head": list(head), "rows": [list(row) for row in rows], "note": note or self.conditions}
        print("\n" + markdown(self.tables[key]), flush=True)

    def write(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        values = {"machine": machine(), "conditions": self.conditions, "goals": [asdict(each) for each in self.goals],
                  "tables": self.tables}  # fmt: skip
        text = json.dumps(values, indent=1, ensure_ascii=False)
        (FOLDER / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")


def markdown(table: dict[str, Any]) -> str:
    rows = [table["head"], ["---"] * len(table["head"]), *table["rows"]]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", table["note"]])


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Median (quartiles), or the median alone of fewer than three."""
    if len(values) < 3:
        return f"{median(values):.{digits}f}" if values else "–"
    low, mid, high = quantiles(values, n=4)
    return f"{mid:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def machine() -> str:
    import torch

    instructions = torch.backends.cpu.get_cpu_capability().replace("AVX512", "AVX-512")
    return f"{platform.machine()}, {_processor()}, {instructions}, torch {torch.__version__}"


def _processor() -> str:
    """The name of the processor and its family, which some virtual machines do not name."""
    try:
        lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
        facts = {name.strip(): value.strip() for name, _, value in lines}
        return f"{facts['model name']} (family {facts['cpu family']}, model {facts['model']})"
    except (OSError, KeyError):
        return platform.processor() or "unknown processor"


def recorded_goals() -> list[Goal]:
    """The goals of all records."""
    files = sorted(FOLDER.glob("*.json"))
    return [Goal(**goal) for file in files for goal in json.loads(file.read_text(encoding="utf-8"))["goals"]]


def main() -> None:
    goals = recorded_goals()
    growth = list(growth_page.goal_rows(json.loads(growth_page.RECORD.read_text(encoding="utf-8"))))
    missed = [goal for goal in goals if not goal.reached]
    slopes = [f"{goal}: {shown}" for goal, shown, reached in growth if not reached]
    count = len(goals) + len(growth)
    print(f"\n{count - len(missed) - len(slopes)} of {count} goals are reached.")
    if missed:
        print("Missed (`python benchmarks/profiles.py PROFILE` prints where the time goes):")
    for goal in missed:
        print(f"- {goal}" + (f"; profile: {goal.profile}" if goal.profile else ""))
    if slopes:
        print("Missed (docs/growth.md explains it):", *slopes, sep="\n- ")


if __name__ == "__main__":
    main()

"""Slopes, goals and the costs of large runs, of made-up measurements whose answers are known."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from tools import growth_page
from tools.growth_page import COLUMNS, goal_rows, large_runs, line_of, lines, slope

GIB = 2**30


def series(sizes: tuple[int, ...], forward: float, diagnosis: float, gib: float = 1.0) -> list[dict[str, float]]:
    """Rows whose times are powers of the size."""
    return [
        {
            "size": n,
            "forward": 1e-3 * n**forward,
            "diagnosis": 5e-3 * n**diagnosis,
            "diagnosis_bytes": gib * GIB,
            "step": 3e-3 * n**forward,
            "step_bytes": GIB,
        }
        for n in sizes
    ]


def made_up(**changes: list[dict[str, float]]) -> dict[str, Any]:
    rows = {
        "tokens": series((64, 4096), 1.2, 1.1),
        "depth": series((2, 4, 8), 0.8, 0.9),
        "width": series((96, 192), 1.5, 1.2),
        "images": series((4, 16), 0.0, -0.4),
    }
    return {"cpu": "a CPU", "base": {"tokens": 64, "depth": 2, "width": 192, "images": 16}, "series": rows | changes}


def test_slopes_and_lines_are_those_of_known_functions() -> None:
    assert slope([2, 4, 16], [3 * x**1.7 for x in (2, 4, 16)]) == pytest.approx(1.7)
    assert math.isnan(slope([2, 4], [0.0, 1.0]))
    assert line_of([2, 4, 8], [7.0, 11.0, 19.0]) == pytest.approx((3.0, 2.0))


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"tokens": series((64, 4096), 1.2, 1.3)}, ["by tokens"]),
        ({"tokens": series((64, 4096), 1.2, 1.1, gib=4.1)}, ["4,096 tokens"]),
        ({"depth": series((2, 4, 8), 0.8, 1.1)}, ["by depth"]),
    ],
)
def test_a_goal_is_missed_where_growth_is_too_large(changes: dict[str, Any], missed: list[str]) -> None:
    found = [goal for goal, _, reached in goal_rows(made_up(**changes)) if not reached]
    assert len(found) == len(missed)
    assert all(name in goal for name, goal in zip(missed, found, strict=True))


def test_a_vital_that_grows_faster_than_the_forward_pass_is_named() -> None:
    rows = [
        {"size": n, "forward": n, "vitals": {"fast": n**1.5, "slow": n**0.9, "noise": 1e-3 * n**2}} for n in (4, 16)
    ]
    *_, (goal, shown, reached) = goal_rows(made_up() | {"vitals": rows})
    assert "each vital" in goal
    assert shown == "`fast` 1.50 against 1.00"
    assert not reached


def test_the_table_of_a_series_ends_in_its_slopes() -> None:
    text = "\n".join(lines(made_up()))
    assert text.count("| slope |") == 4
    assert "| slope | 1.20 | 1.10 | −0.10 | 0.00 | 1.20 | 0.00 |" in text
    assert len(COLUMNS) + 1 == len(growth_page.HEADINGS)  # and the ratio


def test_large_runs_are_lines_through_what_was_measured() -> None:
    """A diagnosis of 10 s and 0.1 s per image, steps of 0.36 s per image, a forward pass of 0.072 s."""
    real = {
        "diagnosed": [
            {"images": n, "forward": 0.072, "diagnosis": (10 + 0.1 * n) / n, "bytes": GIB} for n in (50, 100)
        ],
        "trained": [{"images": n, "step": 0.36, "bytes": GIB + n * 2**20} for n in (4, 16)],
    }
    assert growth_page.diagnosis_hours(real, 36_000) == pytest.approx(1 + 10 / 3600)
    text = "\n".join(large_runs({**made_up(), "real": real}))
    rows = dict(re.findall(r"^\| (.+?) \| ([\d,.]+) \|", text, flags=re.MULTILINE))
    assert rows["diagnosis of 50,000 images"] == "1.4"
    assert rows["one epoch of ImageNet"] == "130"
    assert rows["one epoch of that stream"] == "10,000"
    assert "each further image adds 1 MiB" in text

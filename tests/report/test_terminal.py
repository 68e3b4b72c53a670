"""Tables on narrow terminals: parts below each other, no cell cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich import box

from unsmooth.report import tables
from unsmooth.report.terminal import WideTable, plain_text
from unsmooth.results.diagnosis import Diagnosis

RESULTS = Path(__file__).parents[2] / "results"


def table() -> WideTable:
    made = WideTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    made.add_column("name")
    for i in range(6):
        made.add_column(f"value {i}", justify="right")
    for name in ("first_name", "second_name"):
        made.add_row(name, *(f"{name[0]}{i}.123456" for i in range(6)))
    return made


@pytest.mark.parametrize("width", [24, 40, 60, 80, 200])
def test_every_cell_is_whole_at_every_width(width: int) -> None:
    text = plain_text([table()], width)
    words = text.split()
    assert all(f"{name}{i}.123456" in words for name in "fs" for i in range(6))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert words.count("first_name") == words.count("second_name") >= 1


def test_a_table_that_fits_is_one_table() -> None:
    assert plain_text([table()], 200).split().count("name") == 1


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_table_of_a_diagnosis_keeps_its_values(width: int) -> None:
    diagnosis = Diagnosis.from_json(RESULTS / "saliency_vits14.json")
    text = plain_text(tables.as_rich(diagnosis), width)
    words = text.split()
    assert "…" not in text
    assert all(value in words for value in ("0.419", "126.4", "0.744", "8.995", "4.216", "0.461"))

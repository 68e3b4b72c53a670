"""The page about tokens by block: every number is in the record, and the figure shows the record."""

from __future__ import annotations

import json
import re
from typing import Any

import matplotlib
import numpy as np
import pytest

from tools import token_page
from tools.markdown import DOCS, RESULTS
from unsmooth.report.token_figure import token_figure

RECORD: dict[str, Any] = json.loads((RESULTS / "dense_saliency_vits14.json").read_text(encoding="utf-8"))
PAGE = (DOCS / "tokens.md").read_text(encoding="utf-8").replace("\u00a0", " ")
NUMBER = r"([+−]?\d+\.\d)"


def cells(section: str) -> list[list[str]]:
    lines = [line for line in PAGE.split(f"## {section}\n")[1].split("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def numbers(cell: str) -> list[float]:
    return [float(number.replace("−", "-")) for number in re.findall(NUMBER, cell)]


@pytest.mark.parametrize("name", RECORD)
def test_the_tables_are_those_of_the_record(name: str) -> None:
    tokens = RECORD[name]["tokens"]
    rows = cells(token_page.TITLES[name])
    assert [row[0] for row in rows] == [str(block) for block in range(12)]
    for block, row in enumerate(rows):
        assert float(row[1]) == pytest.approx(tokens["similarity"][str(block)], abs=0.0051)
        for cell, probe in zip(row[2:], tokens["probes"], strict=True):
            score = probe["blocks"][block]
            expected = [100 * value for value in (score["score"], *score["interval"])]
            assert numbers(cell) == pytest.approx(expected, abs=0.051)


def test_the_summary_is_that_of_the_record() -> None:
    rows = iter(cells("What the collapse costs"))
    for record in RECORD.values():
        for probe in record["tokens"]["probes"]:
            row, used, last = next(rows), probe["blocks"][9], probe["blocks"][11]
            assert numbers(row[2])[0] == pytest.approx(100 * used["score"], abs=0.051)
            assert numbers(row[3])[0] == pytest.approx(100 * last["score"], abs=0.051)
            expected = [100 * value for value in (used["score"] - last["score"], *used["gain_interval"])]
            assert numbers(row[4]) == pytest.approx(expected, abs=0.051)
            assert int(row[5].split(":")[0]) == int(np.argmax([block["score"] for block in probe["blocks"]]))


def test_the_figure_shows_the_record() -> None:
    figure = token_figure(token_page.scores())
    for i, record in enumerate(RECORD.values()):
        similarity, scores = figure.axes[2 * i], figure.axes[2 * i + 1]
        assert list(np.asarray(similarity.lines[0].get_ydata())) == list(record["tokens"]["similarity"].values())
        for line, probe in zip(scores.lines, record["tokens"]["probes"], strict=False):
            expected = [100 * block["score"] for block in probe["blocks"]]
            np.testing.assert_allclose(np.asarray(line.get_ydata()), expected)


def test_the_figure_is_current() -> None:
    """`python -m tools.token_page` draws it. Its bytes depend on the version of matplotlib, which the file names."""
    committed = (DOCS / token_page.FIGURE).read_text(encoding="utf-8")
    if f"Matplotlib v{matplotlib.__version__}," not in committed:
        pytest.skip("drawn by another version of matplotlib")
    assert token_page.figure().decode() == committed

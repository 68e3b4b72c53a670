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
    rows = iter(cells("Block 9 against the last block"))
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


def test_the_reading_agrees_with_the_record() -> None:
    scores = {
        (name, probe["tokens"], probe["probe"]): probe["blocks"]
        for name, record in RECORD.items()
        for probe in record["tokens"]["probes"]
    }

    def best(key: tuple[str, str, str]) -> int:
        return int(np.argmax([block["score"] for block in scores[key]]))

    neighbours = [key for key in scores if key[2] == "knn"]
    linear = [key for key in scores if key[2] == "linear" and key[1] != "class"]
    assert len(neighbours) == 4 and len(linear) == 3
    assert all(scores[key][9]["gain_interval"][0] > 0 for key in neighbours)
    for key in linear:
        low, high = scores[key][9]["gain_interval"]
        assert low < 0 < high
    assert scores["cifar10", "class", "linear"][9]["gain_interval"][1] < 0
    assert best(("cifar10", "class", "linear")) == 11 and best(("cifar10", "class", "knn")) == 10
    apart = []
    for key in neighbours:
        if key[1] != "class":
            assert best(key) == 7
            apart += [key[0]] if scores[key][7]["gain_interval"][0] > scores[key][9]["gain_interval"][1] else []
    assert apart == ["mosaics"]
    reading = PAGE.split("- **Nearest neighbours lose.**")[1].split("![")[0]
    for key in (*neighbours, *linear, ("cifar10", "class", "linear")):
        gain, low, high = (100 * v for v in (scores[key][9]["gain"], *scores[key][9]["gain_interval"]))
        assert f"{gain:+.1f} ({low:+.1f} to {high:+.1f})".replace("-", "−") in reading

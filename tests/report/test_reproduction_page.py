"""The page of an experiment of a paper: its claims and its figure, under the name of what ran."""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.support.browser import browser, overflow
from unsmooth.papers.catalogue import list_papers, small_host_name
from unsmooth.report.reproduction_page import reproduction_page
from unsmooth.report.reproduction_table import as_markdown, claim_lines
from unsmooth.results.reproduction import Reproduction

__all__ = ["browser"]

FIGURE = b"<svg xmlns='http://www.w3.org/2000/svg' width='40' height='20'><path d='M0 0L40 20'/></svg>"
RAN = "small host vit (6 blocks, 32 channels)"


def experiment(**changes: Any) -> Reproduction:
    value = {"published": 79.8, "published_gain": 0.5, "measured": 30.0, "gain": 1.0, "low": -1.0, "high": 3.0}
    rows = [
        {"name": name, "spec": "x", "values": {"top1": value}, "curves": {}} for name in ("plain", "<b>attn_scale</b>")
    ]
    return Reproduction.from_dict({
        "format": 1, "kind": "paper", "id": "a/table1", "title": "Accuracy", "source": "Table 1", "evidence": "P",
        "shows": "It helps.", "lines": "1", "fingerprint": "f",
        "scale": {"small": True, "data": "digits", "differs": ["data: digits"]},
        "groups": [{"name": "DeiT-S", "rows": rows, "picture": "table1-1.svg", "ran": RAN}],
        "claims": [
            {"text": "it is better", "source": "line 1",
             "checks": [{"group": "DeiT-S", "arm": "attn_scale", "state": "undecided"}]},
            {"text": "it is free", "source": "line 2",
             "checks": [{"group": "DeiT-S", "arm": "attn_scale", "state": "confirmed"}]},
        ],
        "made": {"unsmooth": "0", "torch": "2", "timm": "1", "command": "unsmooth paper", "seconds": 1.0},
    } | changes)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "table1-1.svg").write_bytes(FIGURE)
    return tmp_path


def test_a_page_shows_claims_and_figure_and_not_a_trial(folder):
    text = reproduction_page(experiment(), folder)
    assert base64.b64encode(FIGURE).decode() in text
    assert text.index('id="claims"') < text.index('id="figures"') < text.index('id="values"')
    said = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)))
    for words in ("not decidable at this scale it is better", "confirmed it is free", "79.8", "+1.0 (−1.0 to +3.0)"):
        assert words in said, words
    assert 'class="claim-confirmed"' in text and 'class="claim-undecided"' in text
    assert "<script" not in text and "Learning curves" not in text


def test_names_are_not_markup(folder):
    assert "<b>attn_scale</b>" not in reproduction_page(experiment(), folder)


def test_a_toy_never_has_a_published_name_alone(folder):
    title = f"{RAN}, in place of DeiT-S"
    assert title in reproduction_page(experiment(), folder) and f"**{title}**" in as_markdown(experiment())
    mixed = experiment()
    mixed.claims[0].checks.append(mixed.claims[1].checks[0])
    assert RAN in claim_lines(mixed)[0] and "DeiT-S" not in claim_lines(mixed)[0]


def test_a_figure_that_is_missing_is_left_out(tmp_path):
    assert "<img" not in reproduction_page(experiment(), tmp_path)


def test_write_makes_the_page(folder):
    assert [path.name for path in experiment().write(folder)] == ["paper.json", "paper.md", "report.html"]
    assert 'class="brand">unsmooth' in (folder / "report.html").read_text()


def test_every_small_host_has_a_name_of_its_own():
    groups = [g for paper in list_papers() for e in paper.experiments() for g in e.groups if g.small]
    toys = {g.small for g in groups if g.small != g.host}
    assert toys
    for spec in toys:
        assert small_host_name(spec).startswith("small host ") and "of its own" not in small_host_name(spec), spec


@pytest.mark.parametrize("width", [420, 1400])
def test_the_page_fits_the_window(browser: Browser, folder: Path, width: int):
    path = folder / "report.html"
    path.write_text(reproduction_page(experiment(), folder), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(path.as_uri())
    assert overflow(page) <= 0
    assert page.evaluate("document.querySelector('img').naturalWidth") > 0
    page.close()

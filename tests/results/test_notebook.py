"""Results in notebooks: isolated frames, tables of pandas, and axes of matplotlib."""

from __future__ import annotations

import base64
import gzip
import html
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.figure import Figure
from playwright.sync_api import Browser, Frame

import unsmooth
from tests.report.test_diagnosis_page import ODD, diagnosis, hostile
from tests.support.browser import browser
from tests.support.small_hosts import host
from tests.support.trial_example import trial
from unsmooth.errors import UnsmoothError
from unsmooth.report.page import page
from unsmooth.report.trial_page import trial_page
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.trial import Trial
from unsmooth.spec import SpecItem
from unsmooth.surgery.plan import BlockPlan, Plan

__all__ = ["browser"]
FRAME = re.compile(r'<iframe sandbox="allow-scripts" style="[^"<>]*" title="unsmooth" srcdoc="([^"<>]*)"></iframe>')


def wait_until_drawn(report: Frame) -> None:
    """The document of a packed frame is written by its own script, which ends what waits in the one before."""
    for _ in range(600):
        if report.evaluate("document.documentElement.dataset.drawn") == "all":
            return
        report.page.wait_for_timeout(50)
    raise AssertionError("its charts are not drawn after 30 seconds")


def odd_plan() -> Plan:
    return Plan(SpecItem("attn_scale", {}), (BlockPlan(0, ODD, (ODD,), 3, 10), BlockPlan(1, ODD, refusal=ODD)), True)


def inner(shown: str) -> str:
    """The page in a frame. Nothing of it is outside the attribute."""
    found = FRAME.fullmatch(shown)
    assert found
    return html.unescape(found[1])


def unpacked(shown: str) -> str:
    packed = re.search(r'atob\("([A-Za-z0-9+/=]+)"\)', inner(shown))
    assert packed
    return gzip.decompress(base64.b64decode(packed[1])).decode()


def test_reports_are_shown_in_a_frame_as_they_are() -> None:
    found, compared = Diagnosis.from_dict(hostile()), Trial.from_dict(trial())
    shown, report = found._repr_html_(), page([found])
    assert unpacked(shown) == report and len(shown) < 0.5 * len(report)
    assert unpacked(compared._repr_html_()) == trial_page(compared)


@pytest.mark.parametrize("shown", [Diagnosis.from_dict(hostile()).findings[0], odd_plan()], ids=["finding", "plan"])
def test_small_pages_have_no_scripts_and_escape_every_text(shown: Any) -> None:
    text = inner(shown._repr_html_())
    assert "<script" not in text and "<img" not in text and "<iframe" not in text
    assert html.escape(ODD).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in text
    assert "default-src &#39;none&#39;" in text


def test_a_plan_shows_its_blocks() -> None:
    planned = unsmooth.plan(host("deit"), "attn_scale")
    text = inner(planned._repr_html_())
    assert html.escape(str(planned)) in text and "<td>blocks.1.attn</td><td>3</td>" in text
    table = planned.frame()
    assert table.index.tolist() == [0, 1] and table["parameters"].sum() == planned.parameters
    assert table["sites"].tolist() == [1, 1] and table["flops"].sum() == planned.flops


def test_vitals_as_a_table() -> None:
    found = Diagnosis.from_dict(diagnosis())
    table = found.frame()
    assert table.index.name == "block" and len(table) == 4
    assert table["token_cosine"].tolist() == found["token_cosine"].mean
    assert "attention_spectrum" not in table and math.isnan(table["layer_cka"][0])
    tidy = found.frame(tidy=True)
    row = tidy.query("vital == 'token_cosine' and part == '' and block == 2").iloc[0]
    assert (row["mean"], row["sd"], row["random"], row["images"]) == (pytest.approx(0.4), 0.05, 0.5, 8)
    heads = tidy.query("vital == 'attention_cosine' and part == 'heads' and block == 1")
    assert heads["mean"].tolist() == [0.4, 0.5, 0.6] and heads["head"].tolist() == [0, 1, 2]
    assert set(tidy.query("vital == 'layer_cka'")["part"]) == {""}


def test_evidence_as_a_table() -> None:
    (row,) = Diagnosis.from_dict(diagnosis()).findings[0].frame().to_dict("records")
    assert (row["vital"], row["block"], row["value"], row["limit"]) == ("token_cosine", 3, 0.5, 0.4)


def test_a_trial_as_a_table() -> None:
    compared = Trial.from_dict(trial())
    table = compared.frame()
    assert table.index.tolist() == compared.keys()
    assert table.loc["attn_scale", "difference"] == compared["attn_scale"].difference.mean
    assert math.isnan(table.loc["plain", "difference"]) and table.loc["plain", "verdict"] == "collapsing"
    runs = compared.frame(runs=True)
    assert len(runs) == 12 and runs.query("arm == 'plain'")["top1"].tolist() == compared["plain"].top1.runs


@pytest.fixture
def pyplot() -> Iterator[Any]:
    matplotlib.use("agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def labels(ax: Any) -> list[str]:
    return ax.get_legend_handles_labels()[1]


def test_an_axis_shows_values_limits_and_blocks(pyplot: Any) -> None:
    found = Diagnosis.from_dict(diagnosis())
    ax = found.plot("token_cosine")
    assert ax.figure is pyplot.gcf()  # a notebook shows it
    mean, random, limit = ax.lines
    assert mean.get_ydata().tolist() == pytest.approx(found["token_cosine"].mean)
    assert random.get_ydata().tolist() == [0.5] * 4 and limit.get_ydata().tolist() == [0.4] * 4
    assert labels(ax) == ["mean over images", "random initialisation", "limit: a rise", "blocks of a finding"]
    assert [span.get_x() for span in ax.patches] == [1.5, 2.5]
    assert ax.get_title() == "token similarity" and ax.get_xlabel() == "block"


def test_an_axis_of_ones_own_with_several_parts(pyplot: Any) -> None:
    found, own = Diagnosis.from_dict(diagnosis()), Figure().add_subplot()
    assert found.plot("token_cosine", parts=["", "robust"], ax=own) is own
    assert pyplot.get_fignums() == []
    assert labels(own)[:3] == ["overall", "random initialisation", "robust"]
    heads = found.plot("attention_cosine", parts="heads", ax=Figure().add_subplot())
    assert [line.get_ydata()[0] for line in heads.lines] == [0.4, 0.5, 0.6]


def test_several_diagnoses_on_one_axis(pyplot: Any) -> None:
    first, second = Diagnosis.from_dict(diagnosis("$a$")), Diagnosis.from_dict(diagnosis("b", blocks=6))
    ax = first.plot("token_cosine", second, ax=Figure().add_subplot())
    assert labels(ax)[0] == r"\$a\$" and "b" in labels(ax) and ax.get_xlim()[1] == 5.5
    compared = Trial.from_dict(trial())
    ax = compared.plot("token_cosine", ax=Figure().add_subplot())
    assert set(compared.keys()) <= set(labels(ax))


def test_what_cannot_be_plotted_is_said(pyplot: Any) -> None:
    found = Diagnosis.from_dict(diagnosis())
    with pytest.raises(UnsmoothError, match=r"no vital 'token_cosin'\. Did you mean 'token_cosine'"):
        found.plot("token_cosin")
    with pytest.raises(UnsmoothError, match=r"token_cosine has no part to plot 'share'\. Known: , robust"):
        found.plot("token_cosine", parts="share")
    with pytest.raises(UnsmoothError, match="attention_spectrum cannot be plotted by block"):
        found.plot("attention_spectrum")
    assert pyplot.get_fignums() == []
    values = trial()
    for arm in values["arms"]:
        arm["diagnosis"] = None
    with pytest.raises(UnsmoothError, match="no arm of this trial was diagnosed"):
        Trial.from_dict(values).plot("token_cosine")


def test_a_frame_runs_in_a_browser_and_touches_nothing_outside(browser: Browser, tmp_path: Path) -> None:
    """As in a notebook: the report draws its charts, its links stay inside, and the page around it is unchanged."""
    found = Diagnosis.from_dict(hostile())
    shown = found._repr_html_() + found.findings[0]._repr_html_() + odd_plan()._repr_html_()
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><body><p>cell</p>{shown}", encoding="utf-8")
    tab = browser.new_page(viewport={"width": 900, "height": 900})
    trouble: list[str] = []
    tab.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("request", lambda r: trouble.append(r.url) if r.url.startswith("http") else None)
    tab.goto(file.as_uri())
    report, finding, plan = (frame.content_frame() for frame in tab.query_selector_all("iframe"))
    wait_until_drawn(report)
    assert report.evaluate("document.querySelectorAll('#decided .js-plotly-plot').length") == 2
    report.evaluate("document.querySelector(\".contents a[href='#heatmap']\").click()")
    assert report.evaluate("document.querySelector('#heatmap details').open")
    assert report.url == "about:srcdoc" and "alert(1)" in finding.inner_text("h3") and plan.locator("tr").count() == 3
    assert tab.evaluate("[typeof Plotly, document.body.children.length]") == ["undefined", 4]
    assert report.evaluate("(() => { try { return parent.document.title } catch { return 'apart' } })()") == "apart"
    tab.close()
    assert trouble == []

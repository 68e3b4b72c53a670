"""The page of a trial in a real browser: no error, no network, and its controls do what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from playwright.sync_api import Browser, Page

from tests.report.test_trial_page import TEN, hostile
from tests.support.browser import Open, beyond_the_keyboard, browser, overflow, visits
from tests.support.trial_example import fail, trial, typed
from unsmooth.report.render import render_trial

__all__ = ["browser"]
pytestmark = pytest.mark.slow
NAMES = "document.querySelector('{}').data.map(t => t.name).filter(Boolean)"
LEARNING, DEPTH, COST, DURING = '[data-learning="0"]', "#curve-token_cosine .plot", "#cost-plot", "#during-lines"


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Open the report of a trial."""
    with visits(browser, lambda value: render_trial(typed(value), "html")) as go:
        yield go


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """The report of one trial, light or dark: opened once for tests that leave it as it was."""
    with visits(browser, lambda value: render_trial(typed(value), "html")) as go:
        yield cache(lambda scheme: go(trial(), scheme=scheme))


def test_everything_is_drawn(shared):
    page = shared("light")
    for section, charts in (("#learning", 3), ("#depth", 3), ("#during", 1 + 4), ("#cost", 1)):
        assert page.locator(f"{section} .js-plotly-plot").count() == charts, section
    assert page.locator(".forest .middle").count() == 3 and page.locator(".forest .middle.shown").count() == 2
    assert page.locator(".forest .seed").count() == 9
    zero = page.locator(".forest .zero").nth(1).bounding_box()["x"]
    bar = page.locator(".forest tr[data-row='3'] .interval").first.bounding_box()
    assert bar["x"] < zero < bar["x"] + bar["width"]  # what shows no difference covers zero


def test_the_legend_hides_an_arm_everywhere(shared):
    page = shared("light")
    assert all("B" in page.evaluate(NAMES.format(chart)) for chart in (LEARNING, DEPTH, COST, DURING))
    page.locator("#differences .model-toggle").nth(1).click()
    for chart in (LEARNING, DEPTH, COST, DURING):
        assert "B" not in page.evaluate(NAMES.format(chart)) and "A" in page.evaluate(NAMES.format(chart))
    assert page.locator("[data-row='1']:visible").count() == 0 and page.locator("[data-row='0']:visible").count() > 4
    pressed = page.locator(".model-toggle[data-model='1']").evaluate_all("b => b.map(x => x.ariaPressed)")
    assert len(pressed) == 5 and set(pressed) == {"false"}
    page.locator("#cost .model-toggle").nth(1).click()
    assert "B" in page.evaluate(NAMES.format(LEARNING)) and page.locator(".forest [data-row='1']").is_visible()


def test_charts_follow_their_controls(visit):
    t = trial()
    fail(t["arms"][1], 2)
    page = visit(t)
    count = f"document.querySelector('{LEARNING}').data.length"
    assert page.evaluate(count) == 4 * 2 + 1  # mean and band of each arm, and the run that failed
    assert "B, seed 2 (failed)" in page.evaluate(NAMES.format(LEARNING))
    page.uncheck("#learning-range")
    assert page.evaluate(count) == 4 + 1
    page.check("#learning-seeds")
    assert page.evaluate(count) == 4 + 12
    heat = "document.querySelector('[data-heat=\"0\"]').data[0].z"
    before, lines = page.evaluate(heat), page.evaluate(f"document.querySelector('{DURING}').data[0].y")
    page.select_option("#during-vital", "1")
    assert page.evaluate(heat) != before
    page.select_option("#during-vital", "0")
    page.select_option("#during-block", "0")
    assert page.evaluate(f"document.querySelector('{DURING}').data[0].y") != lines
    label = f"document.querySelector('{COST}').layout.xaxis.title.text"
    assert page.evaluate(label) == "inference throughput, relative to A"
    page.select_option("#cost-which", label="parameters")
    assert page.evaluate(label) == "parameters"


def test_letters_in_the_scatter_do_not_cover_each_other(visit):
    t = trial(TEN)
    for i, arm in enumerate(t["arms"]):
        arm["inference"]["ratio"] = dict.fromkeys(("median", "low", "high"), 1 + 0.012 * (i % 3))
    page = visit(t)
    boxes = page.locator("#cost-plot .annotation-text").evaluate_all(
        "nodes => nodes.map(n => n.getBoundingClientRect()).map(b => [b.x + b.width / 2, b.y + b.height / 2])"
    )
    assert len(boxes) == 10
    apart = [max(abs(a[0] - b[0]), abs(a[1] - b[1])) for i, a in enumerate(boxes) for b in boxes[:i]]
    assert min(apart) > 6


def test_the_keyboard_reaches_every_control(shared):
    page = shared("light")
    wanted = {"skip-link", "theme", "learning-range", "learning-seeds", "show-spread", "show-parts", "during-vital",
              "during-block", "cost-which", "control model-toggle", "scroll"}  # fmt: skip
    assert beyond_the_keyboard(page, wanted, 120) == set()


def test_no_width_makes_the_page_scroll_sideways(visit):
    long = tuple(f"{name}+attn_scale+feat_scale+context_broadcast(position=mid)" for name in TEN)
    t = trial(long, epochs=30)
    fail(t["arms"][9], 0, 1, 2)
    page = visit(t, width=390)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for width in (390, 801, 1180, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        assert overflow(page) <= 0, width


def test_theme_changes_every_chart(shared):
    page = shared("dark")
    inks = "[...document.querySelectorAll('.js-plotly-plot')].map(p => p.layout.font.color)"
    dark = set(page.evaluate(inks))
    page.click("#theme")
    assert len(dark) == 1 and len(set(page.evaluate(inks))) == 1 and dark != set(page.evaluate(inks))
    page.click("#theme")
    assert dark == set(page.evaluate(inks))


def test_names_of_others_are_shown_and_not_run(visit):
    page = visit(hostile())
    page.check("#learning-seeds")
    page.locator("#cost-plot").hover()
    assert page.locator("main img").count() == 0
    assert "<img src=x onerror=alert(1)>" in page.locator("#verdict").inner_text()


def test_a_trial_with_next_to_nothing_runs(visit):
    t = trial(("plain",), seeds=(0,), epochs=1)
    t["arms"][0] |= {"diagnosis": None, "inference": None, "training": None, "robustness": {}}
    page = visit(t)
    assert page.locator("#learning .js-plotly-plot").count() == 3
    fail(t["arms"][0], 0)
    t["arms"][0]["runs"][0]["epochs"] = []
    assert "failed" in visit(t).locator("#accuracy").inner_text()


def test_print_is_light_and_without_controls(shared):
    page = shared("dark")
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible() and not page.locator("#learning-seeds").is_visible()

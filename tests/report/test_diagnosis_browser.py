"""The page in a real browser: it runs without an error and without a network, and its controls do what they say."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from playwright.sync_api import Browser, Page

from tests.report.test_diagnosis_page import IMG, bare, diagnosis, hostile, render
from tests.support.browser import Open, beyond_the_keyboard, browser, overflow, visits

__all__ = ["browser"]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Open a report of diagnoses."""
    with visits(browser, lambda *diagnoses: render(list(diagnoses), "html")) as go:
        yield go


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """The report of one diagnosis, light or dark: opened once for tests that use other parts of it."""
    with visits(browser, lambda d: render([d], "html")) as go:
        yield cache(lambda scheme: go(diagnosis(), scheme=scheme))


@pytest.fixture
def page(shared: Callable[[str], Page]) -> Page:
    return shared("light")


def pixels(page: Page, canvas: str) -> str:
    return page.evaluate(f"document.getElementById('{canvas}').toDataURL()")


def test_everything_is_drawn(page):
    assert page.locator("#decided .plot .js-plotly-plot, #decided .js-plotly-plot").count() == 2
    assert page.locator("#curves .plot .main-svg").count() >= 1
    assert page.locator("#bounds .js-plotly-plot").count() == 2
    assert page.locator("#learned .main-svg").count() >= 2
    assert page.locator("#grid-panels path").count() == 3 * 4
    assert page.locator("#film-attention canvas").count() == 4
    assert page.locator("h1").inner_text().replace("\u2060", "") == "Tokens collapse in blocks 2–3."


def test_the_rest_is_folded_and_links_open_it(visit):
    page = visit(diagnosis(), folded=True)
    assert page.locator("#curve-token_cosine .main-svg").count() > 0 and page.locator("#map-picture").is_visible()
    assert not page.locator("#heatmap-table").is_visible() and not page.locator(".evidence").is_visible()
    page.click(".contents a[href='#heatmap']")
    page.wait_for_selector("#heatmap-table")
    page.click("#heatmap-table a[href='#curve-layer_cka']")  # a chart in another fold, drawn as it opens
    page.wait_for_selector("#curve-layer_cka .main-svg")
    wide = page.evaluate("document.querySelector('#curve-layer_cka .plot')._fullLayout.width")
    assert abs(wide - page.evaluate("document.querySelector('#curve-layer_cka .plot').clientWidth")) <= 1
    page.click("#heatmap-table .mark >> nth=0")
    page.wait_for_selector("#finding-0-0 .evidence")
    page.click("#curve-layer_cka h4 a")
    page.wait_for_selector("#define-layer_cka")


def test_a_link_from_outside_opens_its_fold(visit):
    page = visit(diagnosis(), folded=True)
    page.goto(f"{page.url}#define-token_cosine")
    page.reload()
    page.wait_for_selector("#define-token_cosine")


def test_colour_means_bad_and_not_large(page):
    ground = "(n) => getComputedStyle(n).backgroundColor"
    similar = [cell.evaluate(ground) for cell in page.locator("tr:has(a[href='#curve-token_cosine']) .cell").all()]
    equal = [cell.evaluate(ground) for cell in page.locator("tr:has(a[href='#curve-attention_cosine']) .cell").all()]
    assert similar[2] == similar[3] and similar[2] not in similar[:2]
    assert set(equal) == {"rgba(0, 0, 0, 0)"}


def test_pickers_change_the_maps(page):
    seen = [(pixels(page, "map-attention"), pixels(page, "map-similarity"))]
    for act in (
        lambda: page.select_option("#map-block", "1"),
        lambda: page.locator("#film-attention button").nth(2).click(),
        lambda: page.locator("#map-picture").click(position={"x": 5, "y": 5}),
        lambda: page.locator("#map-picture").press("ArrowRight"),
        lambda: page.locator("#map-picture").press("ArrowDown"),
        lambda: page.select_option("#map-image", "1"),
        lambda: page.uncheck("#map-over"),
    ):
        act()
        now = (pixels(page, "map-attention"), pixels(page, "map-similarity"))
        assert now[0] != seen[-1][0] and now[1] != seen[-1][1]
        seen.append(now)
    assert page.input_value("#map-block") == "2"  # the row of pictures picks a block as well
    assert page.locator("#map-query").inner_text() == "Query patch in row 2, column 2"
    page.select_option("#map-head", "1")
    assert pixels(page, "map-attention") != seen[-1][0]
    assert pixels(page, "map-similarity") == seen[-1][1]  # tokens have no heads


def test_pictures_follow_image_block_and_head(visit):
    d = diagnosis()
    d["samples"][1]["left_out"] = {"rollout": f"block 3: {IMG}"}
    del d["samples"][1]["pictures"]["3"]["rollout"]
    page = visit(d)
    film = page.locator("#picture-pca .film")
    assert film.locator("canvas").count() == 4
    rgb = "Array.from(document.querySelector('#picture-pca canvas').getContext('2d').getImageData(0, 0, 1, 1).data)"
    stored = base64.b64decode(d["samples"][0]["pictures"]["0"]["pca"])
    assert page.evaluate(rgb) == [*stored[:3], 255]
    assert film.locator("button").nth(1).inner_text().split() == ["1", "40", "%"]
    film.locator("button").nth(1).click()
    assert page.input_value("#map-block") == "1"
    one = "document.querySelector('#picture-class_attention canvas').toDataURL()"
    mean = page.evaluate(one)
    page.select_option("#map-head", "2")
    assert page.evaluate(one) != mean
    assert page.evaluate("document.getElementById('paths').data.length") == 2
    assert not page.locator("#picture-rollout .left-out").is_visible()
    page.select_option("#map-image", "1")
    assert page.locator("#picture-rollout canvas").count() == 3
    assert page.locator("#picture-rollout .left-out").inner_text() == f"Left out: block 3: {IMG}."


def test_charts_follow_their_controls(page):
    traces = "document.querySelector('#curve-{}  .plot').data.length"
    plain = page.evaluate(traces.format("token_cosine"))
    page.uncheck("#show-spread")
    assert page.evaluate(traces.format("token_cosine")) == plain - 1
    page.uncheck("#show-random")
    assert page.evaluate(traces.format("token_cosine")) == 2  # the mean and its limit
    page.check("#show-parts")
    assert page.evaluate(traces.format("token_cosine")) == 3
    page.select_option("#curve-attention_cosine select", label="by head")
    assert page.evaluate(traces.format("attention_cosine")) == 3
    page.select_option("#curve-layer_cka select", label="matrix")
    assert page.evaluate("document.querySelector('#curve-layer_cka .plot').data[0].type") == "heatmap"
    page.check("#show-range")
    page.uncheck("#show-parts")
    assert page.evaluate("document.querySelector('#curve-token_cosine .plot').layout.yaxis.range") == [0, 1]


def test_a_panel_is_shown_large(page):
    page.locator("#grid-panels .panel").nth(5).click()  # the second head of the second block
    assert (page.input_value("#grid-block"), page.input_value("#grid-head")) == ("1", "1")
    assert page.evaluate("document.getElementById('grid-detail').data.length") == 1
    page.select_option("#grid-head", "all")
    assert page.evaluate("document.getElementById('grid-detail').data.length") == 3
    before = page.locator("#grid-panels path").first.get_attribute("d")
    page.select_option("#grid-which", "1")
    assert page.locator("#grid-panels path").first.get_attribute("d") != before


def test_theme_follows_the_system_and_the_button(shared):
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "document.querySelector('#curves .plot').layout.font.color"
    light, dark = shared("light"), shared("dark")
    assert light.evaluate(ground) != dark.evaluate(ground)
    light_ground, light_ink = light.evaluate(ground), light.evaluate(ink)
    light.click("#theme")
    assert light.evaluate(ground) == dark.evaluate(ground)
    assert light.evaluate(ink) == dark.evaluate(ink) != light_ink
    light.click("#theme")
    assert light.evaluate(ground) == light_ground


def test_the_keyboard_reaches_every_control(visit):
    page = visit(diagnosis("first"), diagnosis("second"))
    wanted = {
        "skip-link", "theme", "heatmap-numbers", "show-spread", "show-parts", "grid-block", "grid-head", "map-model",
        "map-image", "map-block", "map-head", "map-picture", "map-over", "control model-toggle",
    }  # fmt: skip
    assert beyond_the_keyboard(page, wanted, 150) == set()


def test_cells_tell_their_value(page):
    cells = page.locator(".cell")
    cells.first.scroll_into_view_if_needed()
    cells.first.hover()
    assert page.locator("#tip").inner_text() == "token similarity, block 0: 0.200 ± 0.0500 (8 images)"
    cells.first.focus()
    page.keyboard.press("ArrowRight")
    assert "block 1: 0.300" in page.locator("#tip").inner_text()
    page.click("#heatmap-table .name a >> nth=0")
    assert page.url.endswith("#curve-token_cosine")


@pytest.mark.parametrize("count", [1, 3])
def test_no_width_makes_the_page_scroll_sideways(visit, count):
    long = "vit_small_patch16_224(depth=24, img_size=224)+attn_scale+feat_scale+context_broadcast(position=mid)"
    page = visit(*[diagnosis(long, blocks=24)] * count, width=360)
    assert overflow(page) <= 0
    page.check("#heatmap-numbers")
    page.check("#show-parts")
    for width in (360, 768, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        assert overflow(page) <= 0, width


def test_names_of_others_are_shown_and_not_run(visit):
    page = visit(hostile(), hostile())
    page.select_option("#map-image", "0")
    page.check("#show-parts")
    page.locator("#curves .plot").first.hover()
    assert page.locator("main img").count() == 0
    assert "<img src=x onerror=alert(1)>" in page.locator("#verdict").inner_text()
    assert page.locator("#map-image option").first.inner_text().startswith("<img src=x")


def test_several_models_can_be_told_apart_and_hidden(visit):
    page = visit(diagnosis("first"), diagnosis("second", blocks=6))
    names = "document.querySelector('#curve-token_cosine .plot').data.map(t => t.name).filter(Boolean)"
    assert page.locator("#decided .model-toggle").all_inner_texts() == ["A\nfirst", "B\nsecond"]
    assert {"A", "B"} <= set(page.evaluate(names))
    shapes = "document.querySelector('#curve-token_cosine .plot').layout.shapes.map(s => s.fillcolor)"
    assert len(set(page.evaluate(shapes))) == 2  # each model marks the blocks of its findings in its colour
    page.locator(".model-toggle").nth(1).click()
    assert len(set(page.evaluate(shapes))) == 1
    assert "B" not in page.evaluate(names)
    page.select_option("#map-model", "1")
    assert page.locator("#film-attention canvas").count() == 6


def test_a_page_without_data_runs(visit):
    page = visit(bare())
    assert page.locator(".empty").count() >= 5


def test_blocks_without_maps_still_show_similarity(visit):
    d = diagnosis()
    for sample in d["samples"]:
        for block in ("0", "3"):
            del sample["blocks"][block]["maps"]
        sample["blocks"]["2"] = {}
        sample["blocks"] = {b: entry for b, entry in sample["blocks"].items() if entry}
    page = visit(d)
    assert page.locator("#film-attention canvas").count() == 1
    assert page.locator("#film-similarity canvas").count() == 3


def test_print_is_light_and_without_controls(shared):
    page = shared("dark")
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.wait_for_timeout(100)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible() and not page.locator("#map-block").is_visible()

"""Pages in a real browser: opened without a network, and watched for anything that goes wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
Open = Callable[..., Page]


@dataclass
class Tabs:
    """What the pages of a browser share.

    A new page starts a process, and a script of another address is compiled again, which takes longer than all else.
    """

    file: Path  # of the page that is opened last
    spare: list[Page]  # that no test uses any more


TABS: dict[Browser, Tabs] = {}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = next((actual for name in NAMES if (actual := shutil.which(name))), None)
    if path is None:
        reason = f"browser tests need Chromium: none of {', '.join(NAMES)} is on the PATH"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        chromium = playwright.chromium.launch(executable_path=path, args=flags)
        TABS[chromium] = Tabs(tmp_path_factory.mktemp("browser") / "page.html", [])
        yield chromium
        del TABS[chromium]
        chromium.close()


@contextmanager
def visits(browser: Browser, render: Callable[..., bytes]) -> Iterator[Open]:
    """Open pages that `render` makes of what is given; afterwards nothing may have gone wrong in them."""
    trouble: list[str] = []
    tabs, pages = TABS[browser], list[Page]()
    listeners = {
        "console": lambda m: trouble.append(f"console: {m.text}") if m.type in ("error", "warning") else None,
        "pageerror": lambda error: trouble.append(f"error: {error}"),
        "dialog": lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        "request": lambda request: None if local(request.url) else trouble.append(f"request: {request.url}"),
    }

    def open_page(*values: Any, width: int = 1200, scheme: Any = "light", folded: bool = False) -> Page:
        tabs.file.write_bytes(render(*values))
        page = tabs.spare.pop() if tabs.spare else browser.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media="null", color_scheme=scheme)
        page.mouse.move(0, 0)
        for event, listener in listeners.items():
            page.on(event, listener)  # type: ignore[call-overload]
        page.goto(tabs.file.as_uri())
        page.wait_for_selector("html[data-drawn=all]", state="attached")
        if not folded:
            unfold(page)
        return page

    yield open_page
    for page in pages:
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
    tabs.spare += pages
    assert trouble == []


def unfold(page: Page) -> None:
    """Open all folded sections and wait for their charts."""
    page.evaluate("document.querySelectorAll('details.fold, details.finding').forEach((fold) => { fold.open = true; })")
    page.wait_for_selector("details[open] .plot:not(.js-plotly-plot)", state="detached")


def local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:"))


def overflow(page: Page) -> int:
    """By how many pixels a page scrolls sideways, once its charts have followed the width of the window."""
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    with suppress(TimeoutError):
        page.wait_for_function(f"{sideways} <= 0", timeout=5000)
    return page.evaluate(sideways)


def beyond_the_keyboard(page: Page, controls: set[str], presses: int) -> set[str]:
    """Which controls, by id or class, so many presses of Tab do not reach."""
    left = set(controls)
    for _ in range(presses):
        page.keyboard.press("Tab")
        left.discard(page.evaluate("document.activeElement.id || document.activeElement.className"))
        if not left:
            break
    return left

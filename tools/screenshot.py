"""A picture of a report for the docs: python -m tools.screenshot REPORT.html OUT.png [SELECTOR]

Without a selector, the picture shows the top of the page; with one, only that element.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

MARGIN = 18  # pixels around an element


def main() -> None:
    report, picture, *selector = sys.argv[1:]
    with sync_playwright() as tools:
        browser = tools.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1400, "height": 960})
        page.goto(Path(report).resolve().as_uri())
        page.wait_for_timeout(1500)
        box = page.locator(selector[0]).bounding_box() if selector else None
        if box:
            clip = {"x": box["x"] - MARGIN, "y": box["y"] - MARGIN}
            clip |= {"width": box["width"] + 2 * MARGIN, "height": box["height"] + 2 * MARGIN}
            page.screenshot(path=picture, clip=clip, full_page=True)  # type: ignore[arg-type]
        else:
            page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main()

"""A picture of the top of a report, for the README: python -m tools.screenshot REPORT.html OUT.png"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    report, picture = Path(sys.argv[1]).resolve(), sys.argv[2]
    with sync_playwright() as tools:
        browser = tools.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 2120})
        page.goto(report.as_uri())
        page.wait_for_timeout(1500)
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main()

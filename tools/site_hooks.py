"""mkdocs hooks: fill the navigation with generated pages, and turn files of the repository root into pages."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
ROOT_PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
SHIM = "assets/javascripts/iframe-worker.js"  # without it, Material loads one from another server
ASSETS = {SHIM: "iframe-worker.js", "assets/stylesheets/site.css": "site.css"}  # docs/ holds pages only


def on_startup(command: str, dirty: bool) -> None:
    """Let warnings pass, which `--quiet` would hide from the count of the strict mode."""
    logging.getLogger("mkdocs").setLevel(logging.WARNING)


def on_config(config: Any) -> Any:
    """Replace `FOLDER/` in the navigation by the pages of that folder, the index first."""
    config.extra["polyfills"] = [SHIM]
    config.nav = [_expand(entry, Path(config.docs_dir)) for entry in config.nav]
    return config


def _expand(entry: Any, docs: Path) -> Any:
    if isinstance(entry, dict):
        return {title: _expand(value, docs) for title, value in entry.items()}
    if isinstance(entry, list):
        return [_expand(value, docs) for value in entry]
    if not entry.endswith("/"):
        return entry
    pages = sorted(file.relative_to(docs).as_posix() for file in (docs / entry).glob("*.md") if file.stem != "index")
    return [f"{entry}index.md", *pages]


def on_files(files: Files, config: Any) -> Files:
    """Add CONTRIBUTING.md and CHANGELOG.md, with links relative to docs/, and the assets."""
    for page, source in ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=re.sub(r"\]\(docs/", "](", text)))
    for asset, source in ASSETS.items():
        files.append(File.generated(config, asset, content=(ROOT / "tools" / source).read_text(encoding="utf-8")))
    return files

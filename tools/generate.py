"""Write the generated pages of docs/: `make docs`.

Each module below has `pages()`, which returns the text of each page by its path in docs/. Nothing here takes long:
pages about slow runs are made from records in results/ (`make hosts`, `make bench`).
"""

from __future__ import annotations

import warnings

from tools import (
    api_pages,
    architecture,
    bench_tables,
    compositions,
    growth_page,
    host_pages,
    model_card,
    paper_pages,
    recipe_page,
    remedy_pages,
    schemas,
    token_page,
    trial_pages,
    verdict_page,
    vital_pages,
)
from tools.markdown import DOCS, NOTE

MODULES = (
    api_pages, architecture, bench_tables, compositions, growth_page, host_pages, model_card, paper_pages, recipe_page,
    remedy_pages, schemas, token_page, trial_pages, verdict_page, vital_pages,
)  # fmt: skip


def pages() -> dict[str, str]:
    """Every generated page: its text by its path in docs/."""
    return {path: text for module in MODULES for path, text in module.pages().items()}


def stale(paths: set[str]) -> list[str]:
    """Generated files in docs/ that no generator writes any more."""
    written = {str(file.relative_to(DOCS)) for file in DOCS.rglob("*.md") if NOTE in file.read_text("utf-8")}
    written |= {str(file.relative_to(DOCS)) for file in (DOCS / "schemas").glob("*.json")}
    return sorted(written - paths)


def main() -> None:
    warnings.simplefilter("ignore")
    texts = pages()
    for path in stale(set(texts)):
        (DOCS / path).unlink()
    for path, text in texts.items():
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""JSON schemas of the results: docs/schemas/NAME.json, and the page docs/schemas.md."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from tools.markdown import page, table

RESULTS = {
    "Diagnosis": "diagnosis", "Evaluation": "evaluation", "Bench": "bench", "Trial": "trial",
    "Prescription": "prescription", "Reproduction": "reproduction",
}  # fmt: skip
INTRO = """
Every result is one JSON file. `to_json` writes it and `from_json` reads it back without loss. Each file carries its
`kind` and `format`; a file of another kind or format, or with invalid fields, raises an error that says why. The
schemas are generated from the classes in `unsmooth/results/`.
"""


def schemas() -> dict[str, dict[str, Any]]:
    """The schema of each result class that has one, by name."""
    classes = {
        name: getattr(import_module(f"unsmooth.results.{module}"), name, None) for name, module in RESULTS.items()
    }
    return {name: cls.json_schema() for name, cls in classes.items() if hasattr(cls, "json_schema")}


def pages() -> dict[str, str]:
    rows, texts = [], {}
    for name, schema in schemas().items():
        cls = getattr(import_module(f"unsmooth.results.{RESULTS[name]}"), name)
        file = f"{RESULTS[name]}.json"
        texts[f"schemas/{file}"] = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        rows.append(
            (
                f"[`{name}`](api/{'diagnosis' if name == 'Diagnosis' else 'results'}.md)",
                f"`{cls.command}`",
                f"[{file}](schemas/{file})",
            )
        )
    lines = ["# JSON schemas", "", INTRO.strip(), "", *table(("result", "written by", "schema"), rows)]
    return {"schemas.md": page(lines), **texts}

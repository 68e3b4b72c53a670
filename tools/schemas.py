"""JSON schemas of the results: docs/schemas/NAME.json, and the page docs/schemas.md."""

from __future__ import annotations

import json
from importlib import import_module

from tools.markdown import page, table

# Name of a result: its module, and the name of its schema.
RESULTS = {
    "Diagnosis": ("diagnosis", "diagnosis"), "Evaluation": ("evaluation", "evaluation"), "Bench": ("bench", "bench"),
    "TrainingResult": ("training", "training_result"), "RunSettings": ("training", "run_settings"),
    "Trial": ("trial", "trial"), "Prescription": ("prescription", "prescription"),
    "Reproduction": ("reproduction", "reproduction"),
}  # fmt: skip
INTRO = """
Every result is one JSON file. `to_json` writes it and `from_json` reads it back without loss. Each file carries its
`kind` and `format`; a file of another kind or format, or with invalid fields, raises an error that says why. In the
directory of a training run, result.json is a `TrainingResult` and run.json a `RunSettings`. The schemas are generated
from the classes in `unsmooth/results/`.
"""


def pages() -> dict[str, str]:
    rows, texts = [], {}
    for name, (module, stem) in RESULTS.items():
        cls = getattr(import_module(f"unsmooth.results.{module}"), name)
        file = f"{stem}.json"
        texts[f"schemas/{file}"] = json.dumps(cls.json_schema(), indent=2, ensure_ascii=False) + "\n"
        rows.append(
            (
                f"[`{name}`](api/{'diagnosis' if name == 'Diagnosis' else 'results'}.md)",
                f"`{cls.command}`",
                f"[{file}](schemas/{file})",
            )
        )
    lines = ["# JSON schemas", "", INTRO.strip(), "", *table(("result", "written by", "schema"), rows)]
    return {"schemas.md": page(lines), **texts}

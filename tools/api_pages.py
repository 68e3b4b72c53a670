"""The API reference: one page per subject with the public names, which mkdocstrings fills in when the site is built."""

from __future__ import annotations

import inspect
from importlib import import_module

import unsmooth
from tools.markdown import page

GROUPS = {
    "diagnosis": ("Diagnosis", ("diagnose", "Diagnosis", "list_vitals")),
    "remedies": (
        "Remedies",
        (
            "apply",
            "remove",
            "applied",
            "parts",
            "plan",
            "fold",
            "auxiliary_loss",
            "find_register_neurons",
            "list_remedies",
        ),
    ),
    "models": ("Models and files", ("create_model", "save", "load", "push", "import_checkpoint")),
    "training": ("Training and comparing", ("train", "compare", "prescribe")),
    "monitor": ("Monitoring", ("Monitor",)),
    "evaluation": ("Evaluation and cost", ("evaluate", "bench")),
    "errors": ("Errors", ("UnsmoothError",)),
}
# What else is on a page: what the public names return or take.
ALSO = {
    "monitor": (
        "unsmooth.monitoring.observe.VitalsRecord",
        "unsmooth.results.training.Alarm",
        "unsmooth.monitoring.writers.Writer",
        "unsmooth.integrations.huggingface.UnsmoothCallback",
        "unsmooth.integrations.lightning.UnsmoothCallback",
    ),
}
RESULTS = ("Evaluation", "Bench", "Trial", "Prescription", "Reproduction")
PARTS = (
    "unsmooth.results.training.TrainingResult",
    "unsmooth.results.training.RunSettings",
    "unsmooth.results.verdict.Finding",
    "unsmooth.surgery.plan.Plan",
)
THEORY = (
    "anti_oversmoothing",
    "augmented_shortcuts",
    "adder_attention",
    "always_skip_attention",
    "context_broadcasting",
)


def pages() -> dict[str, str]:
    grouped = [name for _, names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(unsmooth.__all__), "every public name is in one group of tools/api_pages.py"
    index = [
        "# API reference", "",
        "Everything a user needs is in the namespace `unsmooth`. Names are imported on first use.", "",
    ]  # fmt: skip
    texts = {}
    for file, (title, names) in GROUPS.items():
        links = ", ".join(f"[`{name}`]({file}.md#{_path(name)})" for name in names)
        index += [f"- [{title}]({file}.md): {links}"]
        paths = [*map(_path, names), *ALSO.get(file, ())]
        texts[f"api/{file}.md"] = page([f"# {title}", "", *(line for path in paths for line in _entry(path))])
    index += ["- [Results](results.md): what evaluations, benchmarks, trials and reproductions return",
              "- [Theory](theory.md): the theorems of the papers as functions"]  # fmt: skip
    results = [f"unsmooth.results.{name.lower()}.{name}" for name in RESULTS if _exists(name)] + list(PARTS)
    texts["api/results.md"] = page([
        "# Results", "",
        "`Diagnosis` is on [its own page](diagnosis.md). Each result can be written to JSON and "
        "read back; a finding is part of a diagnosis, and a plan is what `plan` returns. "
        "The [schemas](../schemas.md) describe the files.", "",
        *(line for path in results for line in _entry(path)),
    ])  # fmt: skip
    texts["api/theory.md"] = page([
        "# Theory", "", "The theorems of the five papers as pure functions, one module per paper.", "",
        *(line for name in THEORY for line in _entry(f"unsmooth.theory.{name}")),
    ])  # fmt: skip
    return {"api/index.md": page(index), **texts}


def _path(name: str) -> str:
    value = getattr(unsmooth, name)
    return f"{inspect.getmodule(value).__name__}.{name}"  # type: ignore[union-attr]


def _exists(name: str) -> bool:
    return hasattr(import_module(f"unsmooth.results.{name.lower()}"), name)


def _entry(path: str) -> list[str]:
    return [f"::: {path}", ""]

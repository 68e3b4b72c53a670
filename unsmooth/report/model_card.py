"""The model card of a treated model: what it is, how to load it, its remedies and its diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unsmooth.report.tables import as_text

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.spec import ModelSpec

FENCE = "~~~~"


def model_card(repository: str, spec: ModelSpec, builds_itself: bool, diagnosis: Diagnosis | None) -> str:
    """The card as Markdown, with the metadata of the hub. `builds_itself`: the recipe names a host of a library."""
    host = "" if builds_itself else ", model=host"
    lines = [
        "---", "library_name: unsmooth", "tags:", "- vision-transformer", "- unsmooth",
        *(f"- {name}" for name in dict.fromkeys(remedy.name for remedy in spec.remedies)), "---", "",
        f"# {repository}", "",
        f"A vision transformer, saved by unsmooth: `{spec or 'a host without remedies'}`.", "",
        *_fenced(f'import unsmooth\n\nmodel = unsmooth.load("hf-hub:{repository}"{host})', "python"),
    ]  # fmt: skip
    if not builds_itself:
        lines += [
            "The host is not part of a library, so its code is not in this repository. Pass the untreated host, as an",
            "object or as a spec such as `FILE.py:FUNCTION`.", "",
        ]  # fmt: skip
    lines += [
        "`model.safetensors` holds the weights, `recipe.json` the spec. Loading them runs no code of this repository.",
        "",
    ]
    if spec.remedies:
        lines += ["## Remedies", "", *(f"- `{remedy}`" for remedy in spec.remedies), ""]
    if diagnosis is not None:
        lines += ["## Diagnosis", "", f"Verdict: **{diagnosis.verdict}**", "", *_fenced(as_text(diagnosis), "text")]
    return "\n".join(lines)


def _fenced(text: str, language: str) -> list[str]:
    """A code block. Text of others cannot end it."""
    return [f"{FENCE}{language}", text.replace(FENCE, "~ ~ ~ ~").rstrip(), FENCE, ""]

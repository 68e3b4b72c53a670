"""How a verdict is reached: rules, thresholds, the models they were calibrated on, candidate remedies."""

from __future__ import annotations

import inspect
import json

from tools.markdown import RESULTS, page, prose, table
from unsmooth.diagnosis import prescriptions, verdict
from unsmooth.diagnosis.prescriptions import is_safe
from unsmooth.diagnosis.rules import RULES, thresholds


def pages() -> dict[str, str]:
    rules = [(rule.__name__, inspect.getdoc(rule) or "") for rule in RULES]
    assert all(text for _, text in rules)
    return {"verdict.md": page([
        "# How a verdict is reached", "", prose(inspect.getdoc(verdict) or ""), "",
        "A verdict is one of `healthy` (no action needed), `untrained`, `suspicious`, `collapsing`, `collapsed`, "
        "`broken` (NaN or infinity) and `unknown` (not enough was measured).", "",
        "## Findings", "", *(f"- **{name}**: {prose(text)}" for name, text in rules), "",
        "## Thresholds", "", prose(inspect.getdoc(thresholds) or ""), "",
        *table(("name", "value", "meaning", "source"),
               ((f"`{name}`", f"{t.value:g}", t.meaning, t.source) for name, t in thresholds.THRESHOLDS.items())),
        "## Calibration", "",
        "The verdict for each model that the thresholds were chosen on, in addition to the saliency fine-tune "
        "(`benchmarks/calibration.py`: hosts of width 64 with 65 tokens, and the trained host with 64, on 32 images "
        "of CIFAR-10). Values are first block → last block. Accuracy shows how far training had progressed.", "",
        *_calibration(),
        "## Candidate remedies", "", prose(inspect.getdoc(prescriptions) or ""), "",
        *table(("finding", "remedy", "why", "on pretrained weights"), (
            (f"`{finding}`", f"`{spec}`", why, "outputs unchanged" if is_safe(spec) else "outputs change")
            for finding, rows in prescriptions.CANDIDATES.items() for spec, why in rows
        )),
    ])}  # fmt: skip


def _calibration() -> list[str]:
    rows = json.loads((RESULTS / "calibration.json").read_text(encoding="utf-8"))["rows"]

    def ends(values: list[float]) -> str:
        return f"{values[0]:.2f} → {values[-1]:.2f}"

    return table(
        ("model", "accuracy", "token similarity", "effective rank, share", "map entropy, share", "verdict"),
        (
            (name, "" if row["accuracy"] is None else row["accuracy"], ends(row["token_cosine"]),
             ends(row["effective_rank.share"]), ends(row["attention_entropy.share"]), row["verdict"])
            for name, row in rows.items()
        ),
    )  # fmt: skip

"""How a verdict is reached: rules, thresholds, the models they were calibrated on, candidate remedies."""

from __future__ import annotations

import inspect
import json

from tools import trial_pages
from tools.markdown import RESULTS, page, prose, section, table
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
        "The verdict for each model that the thresholds were compared with, in addition to the saliency fine-tune, on "
        "32 images each (`benchmarks/calibration.py`): hosts of width 64 with 65 tokens, `cct_12_3x2_32` and the host "
        "of the trial without skips ([trials](trials/index.md)) on CIFAR-10, untrained DeiT-Ti on photographs, and the "
        "models of `unsmooth demo`. Values are first block → last block. Accuracy shows how far training had got.", "",
        *_calibration(),
        *section("Does the verdict predict the outcome?", [
            "From all recorded [trials](trials/index.md):", "", trial_pages.PREDICTION.strip(), "",
            *table(("verdict", *trial_pages.OUTCOMES, "arms"),
                   trial_pages._outcomes(trial_pages.recorded_trials())),
        ]),
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

    without = [row for name, row in rows.items() if "no attention skip" in name and "treated" not in name]
    collapsed = sum(row["verdict"] == "collapsed" for row in without)
    others = sum(row["verdict"] == "collapsed" for row in rows.values()) - collapsed
    treated = next(row for name, row in rows.items() if "treated" in name)
    collapsing = sum(row["verdict"] == "collapsing" for row in rows.values())
    summary = (
        f"`collapsed` is the verdict on {collapsed} of {len(without)} models without the attention skip, and on "
        f"{others} of the {len(rows) - len(without)} others. No threshold had to move for that. {collapsing} models "
        "with skips, all after few hundred steps, are `collapsing`: their tokens become more similar with depth, and "
        "whether that harms them is for a trial to show. The treated model of the demo is "
        f"`{treated['verdict']}`, although it learns."
    )
    return [summary, "", *table(
        ("model", "accuracy", "token similarity", "effective rank, share", "map entropy, share", "verdict"),
        (
            (name, "" if row["accuracy"] is None else row["accuracy"], ends(row["token_cosine"]),
             ends(row["effective_rank.share"]), ends(row["attention_entropy.share"]), row["verdict"])
            for name, row in rows.items()
        ),
    )]  # fmt: skip

"""Findings and a verdict, from what a diagnosis measured and nothing else.

A finding needs evidence from two families of vitals, and comes with what it was eval_model against and candidate
remedies. The verdict is about tokens; "no action needed" is one.
"""

from __future__ import annotations

from typing import Any

from unsmooth.diagnosis.prescriptions import prescribe
from unsmooth.diagnosis.rules import RULES, DiagnosisView, Finding
from unsmooth.utils.text import blocks_text, spans

NEEDED = ("token_cosine", "effective_rank")
REFERENCE = "the thresholds of unsmooth/diagnosis/thresholds.py"


def judge(data: dict[str, Any]) -> tuple[list[Finding], dict[str, Any]]:
    """The findings of a diagnosis, worst first, and its verdict."""
    chart = DiagnosisView(data)
    found = [finding for rule in RULES if (finding := rule(chart)) is not None]
    if any(finding["key"] == "untrained" for finding in found):  # what else is true of a start is no news
        found = [finding for finding in found if finding["severity"] != "note" or finding["key"] == "untrained"]
    for finding in found:
        families = {row["family"] for row in finding["evidence"]}
        assert len(families) > 1 or finding["key"] == "not_finite", finding["key"]
        finding["reference"] = REFERENCE + (
            f"; the same architecture at random start, {data['reference']['how']}" if data["reference"] else ""
        )
        finding["remedies"] = prescribe(finding["key"], finding["blocks"], data["model"]["remedies"])
    found.sort(key=lambda finding: ("severe", "warning", "note").index(finding["severity"]))
    return found, _verdict(chart, found)


def _verdict(chart: DiagnosisView, found: list[Finding]) -> dict[str, Any]:
    by_key = {finding["key"]: finding for finding in found}
    if "not_finite" in by_key:
        finding = by_key["not_finite"]
        return {"state": "broken", "text": finding["text"], "blocks": finding["blocks"]}
    if any(not any(v is not None for v in chart.series(key)) for key in NEEDED):
        text = f"No verdict: it needs {' and '.join(NEEDED)}, and not both have values here."
        return {"state": "unknown", "text": text, "blocks": []}
    if "token_collapse" in by_key:
        finding = by_key["token_collapse"]
        whole = len(finding["blocks"]) == chart.depth
        where = "every block" if whole else blocks_text(finding["blocks"])
        healthy = "" if whole else f" {_rest(chart, finding['blocks'])}"
        state, words = (
            ("collapsed", "have collapsed") if finding["severity"] == "severe" else ("collapsing", "collapse")
        )
        text = f"Tokens {words} in {where}.{healthy}"
        return {"state": state, "text": text, "blocks": finding["blocks"], "why": finding["why"]}
    if "untrained" in by_key:
        text = "Tokens do not collapse with depth, but attention averages in every block: this model looks untrained."
        return {"state": "untrained", "text": text, "blocks": []}
    warnings = [finding for finding in found if finding["severity"] == "warning"]
    if warnings:
        names = "; ".join(f"{f['title'].lower()} ({blocks_text(f['blocks'])})" for f in warnings)
        text = f"Tokens do not collapse. Worth a look: {names}."
        return {"state": "suspicious", "text": text, "blocks": warnings[0]["blocks"]}
    cosine = [v for v in chart.series("token_cosine") if v is not None]
    share = [v for v in chart.series("effective_rank", "share") if v is not None]
    text = (
        f"No action needed. Token similarity stays between {min(cosine):.2f} and {max(cosine):.2f}, effective rank "
        f"between {min(share):.2f} and {max(share):.2f} of its largest value."
    )
    return {"state": "healthy", "text": text, "blocks": []}


def _rest(chart: DiagnosisView, blocks: list[int]) -> str:
    rest = [b for b in range(chart.depth) if b not in blocks]
    first = [b for b in rest if b < blocks[0]]
    return f"The blocks before ({spans(first)}) are healthy." if first else f"{blocks_text(rest).capitalize()} recover."

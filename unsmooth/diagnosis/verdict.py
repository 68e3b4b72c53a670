"""From the vitals of a diagnosis to findings and a verdict.

A finding needs evidence from two families of vitals. It names what it was compared with and lists candidate remedies.
The verdict is about the tokens; `healthy` means that no action is needed.
"""

from __future__ import annotations

from collections.abc import Callable

from unsmooth.diagnosis.prescriptions import prescribe
from unsmooth.diagnosis.rules import RULES, DiagnosisView
from unsmooth.results.diagnosis import Finding, Verdict
from unsmooth.utils.text import blocks_text

NEEDED = ("token_cosine", "effective_rank")
SEVERITIES = ("severe", "warning", "note")


def reach_verdict(
    view: DiagnosisView, fits: Callable[[str], bool] = lambda spec: True
) -> tuple[list[Finding], Verdict]:
    """The findings, the most severe one first, and the verdict. `fits` says whether a remedy can be applied."""
    findings = [finding for rule in RULES if (finding := rule(view)) is not None]
    if any(finding.key == "untrained" for finding in findings):  # other notes hold for every untrained model
        findings = [f for f in findings if f.severity != "note" or f.key == "untrained"]
    for finding in findings:
        families = {evidence.family for evidence in finding.evidence}
        assert len(families) > 1 or finding.key == "not_finite", finding.key
        finding.reference = "the thresholds of unsmooth" + (
            f" and the same architecture at random initialisation ({view.reference.how})" if view.reference else ""
        )
        finding.remedies = prescribe(finding.key, finding.blocks, view.model.remedies, fits)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return findings, _verdict(view, {finding.key: finding for finding in findings})


def _verdict(view: DiagnosisView, findings: dict[str, Finding]) -> Verdict:
    if (broken := findings.get("not_finite")) is not None:
        return Verdict("broken", broken.text, broken.blocks)
    if any(all(mean is None for mean in view.means(key)) for key in NEEDED):
        return Verdict("unknown", f"No verdict: it needs values of both {' and '.join(NEEDED)}.")
    if (collapse := findings.get("token_collapse")) is not None:
        everywhere = len(collapse.blocks) == view.depth
        where = "every block" if everywhere else blocks_text(collapse.blocks)
        others = "" if everywhere else f" {_other_blocks(view, collapse.blocks)}"
        state, verb = ("collapsed", "have collapsed") if collapse.severity == "severe" else ("collapsing", "collapse")
        return Verdict(state, f"Tokens {verb} in {where}.{others}", collapse.blocks, collapse.why)
    if "untrained" in findings:
        text = "Tokens do not collapse with depth, but attention is uniform in every block: the model looks untrained."
        return Verdict("untrained", text)
    warnings = [finding for finding in findings.values() if finding.severity == "warning"]
    if warnings:
        names = "; ".join(f"{finding.title.lower()} ({blocks_text(finding.blocks)})" for finding in warnings)
        return Verdict("suspicious", f"Tokens do not collapse, but there are warnings: {names}.", warnings[0].blocks)
    cosine = [v for v in view.means("token_cosine") if v is not None]
    share = [v for v in view.means("effective_rank", "share") if v is not None]
    text = (
        f"No action needed. Token similarity is between {min(cosine):.2f} and {max(cosine):.2f}, effective rank "
        f"between {min(share):.2f} and {max(share):.2f} of its maximum."
    )
    return Verdict("healthy", text)


def _other_blocks(view: DiagnosisView, collapsed: list[int]) -> str:
    others = [b for b in range(view.depth) if b not in collapsed]
    earlier = [b for b in others if b < collapsed[0]]
    blocks, verbs = (earlier, ("is healthy", "are healthy")) if earlier else (others, ("recovers", "recover"))
    return f"{blocks_text(blocks).capitalize()} {verbs[len(blocks) > 1]}."

"""From the vitals of a diagnosis to findings and a verdict.

A finding needs evidence from two families of vitals. Each piece of evidence has its value, its limit and the source of
the limit. Two families that agree are a collapse; one that is far past its limit while the other is not makes the
verdict `suspicious`. The verdict is about the tokens; it states levels and trends apart, and `healthy` means that no
action is needed. It ends in the next step, and in what would change it.
"""

from __future__ import annotations

from collections.abc import Callable

from unsmooth.diagnosis.harm import harm_of
from unsmooth.diagnosis.next_steps import next_steps, would_change
from unsmooth.diagnosis.prescriptions import prescribe
from unsmooth.diagnosis.rules import RULES
from unsmooth.diagnosis.rules.curves import TokenCurves
from unsmooth.diagnosis.rules.thresholds import threshold
from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.results.measured import ImagesInfo
from unsmooth.results.verdict import Finding, Verdict
from unsmooth.utils.text import blocks_text

COLLAPSES = ("token_collapse", "one_sided")  # findings whose harm is measured
NEEDED = ("token_cosine", "effective_rank")
SEVERITIES = ("severe", "warning", "note")
# From best to worst; the other states say that there is no verdict about the tokens.
STATES = ("healthy", "untrained", "suspicious", "collapsing", "collapsed")
CAVEAT = (
    "This measures tokens, not accuracy: no labels were given. Some tasks want similar tokens, such as saliency, or "
    "classification by the class token."
)


def reach_verdict(
    view: DiagnosisView, fits: Callable[[str], bool] = lambda spec: True, images: ImagesInfo | None = None
) -> tuple[list[Finding], Verdict]:
    """The findings, the most severe one first, and the verdict. `fits` says whether a remedy can be applied."""
    findings = [finding for rule in RULES if (finding := rule(view)) is not None]
    if any(finding.key == "untrained" for finding in findings):  # other notes hold for every untrained model
        findings = [f for f in findings if f.severity != "note" or f.key == "untrained"]
    for finding in findings:
        families = {evidence.family for evidence in finding.evidence}
        assert len(families) > 1 or finding.key in ("not_finite", "one_sided"), finding.key
        finding.reference = "the thresholds of unsmooth" + (
            f" and the same architecture at random initialisation ({view.reference.how})" if view.reference else ""
        )
        if finding.key in COLLAPSES:
            finding.harm = harm_of(view, finding)
        finding.remedies = prescribe(finding.key, finding.blocks, view.model.remedies, fits)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    verdict = _verdict(view, {finding.key: finding for finding in findings})
    if verdict.state not in ("broken", "unknown"):
        verdict.levels, verdict.trends = _levels(view), _trends(view)
        verdict.harm = next((str(finding.harm) for finding in findings if finding.harm is not None), "")
        verdict.caveat = "" if any(v is not None for v in view.means("depth_probe")) else CAVEAT
    verdict.steps = next_steps(view, verdict, findings, images)
    verdict.would_change = would_change(view, verdict)
    return findings, verdict


def _verdict(view: DiagnosisView, findings: dict[str, Finding]) -> Verdict:
    if (broken := findings.get("not_finite")) is not None:
        return Verdict("broken", broken.text, broken.blocks)
    if (collapse := findings.get("token_collapse")) is not None:
        everywhere = len(collapse.blocks) == view.depth
        where = "every block" if everywhere else blocks_text(collapse.blocks)
        state, verb = ("collapsed", "have collapsed") if collapse.severity == "severe" else ("collapsing", "collapse")
        text = f"Tokens {verb} in {where}.{_other_blocks(view, findings)}"
        return Verdict(state, text, collapse.blocks, collapse.why)
    missing = [key for key in NEEDED if all(mean is None for mean in view.means(key))]
    if missing and "one_sided" not in findings:
        return Verdict("unknown", f"No verdict: it needs values of both {' and '.join(NEEDED)}.")
    warnings = [finding for finding in findings.values() if finding.severity == "warning"]
    if "untrained" in findings and "one_sided" not in findings:
        text = "Tokens do not collapse with depth, but attention is uniform in every block: the model looks untrained."
        return Verdict("untrained", text)
    if warnings:
        names = "; ".join(f"{finding.title.lower()} ({blocks_text(finding.blocks)})" for finding in warnings)
        blocks = sorted({block for finding in warnings for block in finding.blocks})
        return Verdict("suspicious", f"There is no collapse by both families of vitals, but: {names}.", blocks)
    return Verdict("healthy", _no_collapse(view))


def _no_collapse(view: DiagnosisView) -> str:
    """The sentence of a healthy model. It names a trend that is past its limit, although the other one is not."""
    curves, blocks = TokenCurves.of(view), range(view.depth)
    risen, fallen = ([b for b in blocks if past(b)] for past in (curves.risen, curves.fallen))
    if risen:
        return f"Tokens do not collapse: similarity rises in {blocks_text(risen)}, but effective rank is preserved."
    if fallen:
        return f"Tokens do not collapse: effective rank falls in {blocks_text(fallen)}, but similarity does not rise."
    return "No action needed: neither similarity nor effective rank is past a limit."


def _levels(view: DiagnosisView) -> str:
    curves, parts = TokenCurves.of(view), []
    cosine, share = ([v for v in values if v is not None] for values in (curves.cosine, curves.share))
    if cosine:
        limit = threshold("collapsed_similarity")
        parts.append(f"token similarity {min(cosine):.2f} to {max(cosine):.2f} (limit: {limit:.2f} and above)")
    if share:
        limit = threshold("collapsed_rank_share")
        parts.append(
            f"effective rank {min(share):.2f} to {max(share):.2f} of its maximum (limit: {limit:.2f} and below)"
        )
    return ", ".join(parts)


def _trends(view: DiagnosisView) -> str:
    """The largest rise of similarity and the largest fall of rank since the best earlier block, beside their limits."""
    curves, parts = TokenCurves.of(view), []
    rises = {b: c - curves.lowest(b) for b, c in enumerate(curves.cosine) if c is not None}
    falls = {b: 1 - s / curves.highest(b) for b, s in enumerate(curves.share) if s is not None and curves.highest(b)}
    if rises:
        b = max(rises, key=lambda b: rises[b])
        low = threshold("least_similarity")
        unless = f", if it reaches {low:.2f}" if (curves.cosine[b] or 0) < low else ""
        where = f" up to block {b}" if rises[b] > 0 else ""
        parts.append(f"similarity rises by {rises[b]:.2f}{where} (limit: {threshold('similarity_rise'):.2f}{unless})")
    if falls:
        b = max(falls, key=lambda b: falls[b])
        where = f" up to block {b}" if falls[b] > 0 else ""
        parts.append(f"effective rank falls by {_percent(falls[b])}{where} (limit: {_percent(threshold('rank_fall'))})")
    return ", ".join(parts)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _other_blocks(view: DiagnosisView, findings: dict[str, Finding]) -> str:
    """A sentence about the blocks whose tokens do not collapse. It does not call them healthy: notes may name them."""
    collapsed = findings["token_collapse"].blocks
    suspicious = findings["one_sided"].blocks if "one_sided" in findings else []
    earlier = [b for b in range(collapsed[0]) if b not in suspicious]
    later = [b for b in range(collapsed[0], view.depth) if b not in (*collapsed, *suspicious)]
    blocks, verbs = (earlier, ("does not", "do not")) if earlier else (later, ("recovers", "recover"))
    if not blocks:
        return ""
    return f" {blocks_text(blocks).capitalize()} {verbs[len(blocks) > 1]}."

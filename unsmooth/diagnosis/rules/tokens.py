"""Findings about tokens: not finite, collapsed, similar or of low rank."""

from __future__ import annotations

from unsmooth.diagnosis.rules.curves import TokenCurves
from unsmooth.diagnosis.rules.thresholds import threshold
from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.results.verdict import Finding, Severity
from unsmooth.utils.text import blocks_text


def not_finite(view: DiagnosisView) -> Finding | None:
    """The first block and branch with NaN or infinity."""
    if view.broken is None:
        return None
    block, where = view.broken.block, view.broken.where
    text = f"NaN or infinity first appears in the {where} of block {block}. Later blocks cannot be measured."
    return Finding("not_finite", "NaN or infinity", "severe", [block], text, [])


def token_collapse(view: DiagnosisView) -> Finding | None:
    """Token similarity and effective rank agree, by level (collapsed) or by trend since the best block (collapsing)."""
    curves = TokenCurves.of(view)
    blocks = [b for b in range(view.depth) if curves.collapsing(b)]
    if not blocks:
        return None
    cosine, by_level = curves.cosine, [b for b in blocks if curves.collapsed(b)]
    worst = max(by_level or blocks, key=lambda b: cosine[b] or 0.0)
    best = min((b for b in range(worst + 1) if cosine[b] is not None), key=lambda b: cosine[b] or 0.0)
    rank = "" if curves.rank[worst] is None else f" and their effective rank {curves.rank[worst]:.1f}"
    text = (
        f"The tokens of {blocks_text(blocks)} {'are nearly parallel' if by_level else 'become more similar'}: their "
        f"similarity is {cosine[worst]:.2f}{rank} in block {worst}. {_trend(cosine, best, worst)}"
    )
    title = "Tokens have collapsed" if by_level else "Tokens are collapsing"
    severity: Severity = "severe" if by_level else "warning"
    evidence = curves.evidence(view, worst)
    return Finding("token_collapse", title, severity, blocks, text, evidence, why=cause(view, blocks))


def one_sided(view: DiagnosisView) -> Finding | None:
    """Token similarity or effective rank alone is far past its limit, by level or by trend; the other is not."""
    curves = TokenCurves.of(view)
    blocks = [b for b in range(view.depth) if curves.one_sided(b)]
    if not blocks:
        return None

    def similar(b: int) -> bool:
        return curves.high(b) or curves.risen(b, "far_rise")

    worst = max(blocks, key=lambda b: (similar(b), curves.cosine[b] or 0.0))
    far, other = ("similarity", "effective rank") if similar(worst) else ("effective rank", "similarity")
    evidence = curves.evidence(view, worst, "far_rise", "far_fall")
    evidence.sort(key=lambda e: (e.margin or 0) < 0)  # what is past its limit first
    second = f"{other} is not" if len(evidence) > 1 else f"{other} was not measured"
    text = f"The {far} of the tokens of {blocks_text(blocks)} is far past its limit, but {second}."
    return Finding("one_sided", f"Only {far} is abnormal", "warning", blocks, text, evidence)


def _trend(cosine: list[float | None], best: int, worst: int) -> str:
    if best == worst or (cosine[worst] or 0) - (cosine[best] or 0) < threshold("similarity_rise"):
        return "This holds from the first block."
    return f"Similarity was lowest in block {best} and has risen since."


def cause(view: DiagnosisView, blocks: list[int]) -> str:
    """The most likely cause of the collapse of these blocks."""
    without_skip = all("attn" not in view.model.blocks[b].residuals for b in blocks)
    if without_skip or any(remedy.startswith("no_skip") for remedy in view.model.remedies):
        return "a skip is missing, so the averages of attention replace the tokens instead of being added to them"
    for branch, name in (("attn", "attention"), ("mlp", "the MLP")):
        ratios = view.means_in(blocks, "branch_ratio", branch)
        if ratios and max(ratios) >= threshold("dominant_branch"):
            return f"{name} adds up to {max(ratios):.1f} times the norm of the skip, so it dominates the sum"
    entropy = view.means_in(blocks, "attention_entropy", "share")
    if entropy and (mean := sum(entropy) / len(entropy)) >= threshold("low_pass"):
        return f"attention is close to an average (entropy {mean:.2f} of its maximum), which is a low-pass filter"
    return "the vitals show no single cause"

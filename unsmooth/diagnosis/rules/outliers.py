"""Findings about single tokens that differ from all others."""

from __future__ import annotations

from unsmooth.diagnosis.rules.thresholds import threshold
from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.results.diagnosis import Finding
from unsmooth.utils.text import blocks_text


def outlier_tokens(view: DiagnosisView) -> Finding | None:
    """A few tokens are much larger than the others; map similarity is listed as further evidence."""
    count, ratio = view.means("token_norm_outliers"), view.means("token_norm_outliers", "ratio")
    maps = view.means("attention_cosine")
    blocks = [
        b
        for b in range(view.depth)
        if (n := count[b]) is not None
        and (r := ratio[b]) is not None
        and maps[b] is not None
        and n >= 1
        and r >= threshold("outlier_ratio")
    ]
    if not blocks:
        return None
    b = max(blocks, key=lambda b: ratio[b] or 0)
    evidence = [
        view.evidence(
            "token_norm_outliers", "ratio", f"{ratio[b]:.1f} times the median norm in block {b}", b, "outlier_ratio"
        ),
        view.evidence("attention_cosine", "", f"{maps[b]:.2f} in block {b}", b),
    ]
    text = (
        f"In {blocks_text(blocks)} about {count[b]:.0f} tokens per image have a norm far above the others. Large "
        "models use such tokens as registers; they harm dense prediction."
    )
    return Finding("outlier_tokens", "Outlier tokens", "note", blocks, text, evidence)

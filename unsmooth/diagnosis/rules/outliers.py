"""Findings about tokens, channels or entries that are much larger than all others."""

from __future__ import annotations

from unsmooth.diagnosis.rules.thresholds import threshold
from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.results.verdict import Finding
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
    if "attention_sink" not in view.vitals:
        text += " The vitals of the group sinks show whether attention to them does nothing or broadcasts."
    return Finding("outlier_tokens", "Outlier tokens", "note", blocks, text, evidence)


def outlier_activations(view: DiagnosisView) -> Finding | None:
    """A few entries or channels are so large that int8 with one scale rounds the others away; sinks are listed too."""
    error, massive = view.means("outlier_channels", "int8"), view.means("massive_activations", "count")
    ratio, channels = view.means("massive_activations"), view.means("outlier_channels", "count")
    token, channel = view.means("outlier_channels", "int8.token"), view.means("outlier_channels", "int8.channel")
    sinks = view.means("attention_sink")
    blocks = [
        b
        for b in range(view.depth)
        if (e := error[b]) is not None
        and (n := massive[b]) is not None
        and sinks[b] is not None
        and (e >= threshold("int8_error") or n >= 1)
    ]
    if not blocks:
        return None
    b = max(blocks, key=lambda b: error[b] or 0)
    evidence = [
        view.evidence("outlier_channels", "int8", f"relative error {error[b]:.2f} in block {b}", b, "int8_error"),
        view.evidence("massive_activations", "", f"{ratio[b]:.0f} times the median in block {b}", b),
        view.evidence("attention_sink", "", f"{sinks[b]:.2f} of the attention in block {b}", b),
    ]
    text = (
        f"In {blocks_text(blocks)} a few entries of the tokens are far larger than the others ({channels[b]:.0f} "
        f"channels in block {b}). One int8 scale for all of them has a relative error of {error[b]:.2f}, one per token "
        f"{token[b]:.3f}, one per channel {channel[b]:.3f}."
    )
    return Finding("outlier_activations", "Outlier activations", "note", blocks, text, evidence)

"""What can be found: one rule each, from two families of vitals, or nothing.

A finding says what, in which blocks, at which level and with which trend. Thresholds are in `unsmooth.diagnosis.thresholds`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unsmooth.diagnosis.thresholds import threshold
from unsmooth.utils.text import blocks_text

Finding = dict[str, Any]


@dataclass(frozen=True)
class DiagnosisView:
    """The means of a diagnosis, by vital, part and block."""

    data: dict[str, Any]

    @property
    def depth(self) -> int:
        return len(self.data["model"]["blocks"])

    def series(self, key: str, part: str = "") -> list[float | None]:
        return self._read(self.data["vitals"].get(key, {}).get("parts", {}), part)

    def random(self, key: str, part: str = "") -> list[float | None]:
        """The same, at random start."""
        reference = self.data["reference"]
        return self._read(reference["vitals"].get(key, {}) if reference else {}, part)

    def _read(self, parts: dict[str, Any], part: str) -> list[float | None]:
        return [None if s is None else s["mean"] for s in parts.get(part, [None] * self.depth)]

    def at(self, key: str, part: str, blocks: list[int]) -> list[float]:
        series = self.series(key, part)
        return [value for b in blocks if (value := series[b]) is not None]

    def evidence(self, key: str, part: str, text: str, block: int | None = None) -> dict[str, Any]:
        start = self.random(key, part)[block] if block is not None else None
        beside = f" (random start: {start:.2g})" if start is not None else ""
        family = self.data["vitals"][key]["family"]
        return {"vital": key, "part": part, "family": family, "text": text + beside}


def _finding(key: str, title: str, severity: str, blocks: list[int], text: str, evidence: list[Any]) -> Finding:
    return {"key": key, "title": title, "severity": severity, "blocks": blocks, "text": text, "evidence": evidence}


def not_finite(chart: DiagnosisView) -> Finding | None:
    """NaN or Inf: the first block and branch that gave it."""
    broken = chart.data["broken"]
    if broken is None:
        return None
    where = f"the {broken['where']} of block {broken['block']}"
    text = f"NaN or Inf appears first in {where}; blocks before it are measured, the rest cannot be."
    return _finding("not_finite", "Numbers that are not finite", "severe", [broken["block"]], text, [])


def token_collapse(chart: DiagnosisView) -> Finding | None:
    """Token similarity and effective rank agree: by level (collapsed), or by rise and fall since their best block."""
    cosine, share, rank = (chart.series(*k) for k in
                           (("token_cosine", ""), ("effective_rank", "share"), ("effective_rank", "")))  # fmt: skip
    flat: list[int] = []  # by level: collapsed, whatever came before
    falling: list[int] = []  # by trend
    for b in range(chart.depth):
        c, s, r = cosine[b], share[b], rank[b]
        if c is None or s is None or r is None:
            continue
        lowest = min(v for v in cosine[: b + 1] if v is not None)
        highest = max(v for v in share[: b + 1] if v is not None)
        if c >= threshold("alike") and (s <= threshold("rank_share") or r <= threshold("rank_least")):
            flat.append(b)
        elif c >= max(threshold("alike_least"), lowest + threshold("alike_rise")) and s <= highest * (
            1 - threshold("rank_fall")
        ):
            falling.append(b)
    blocks = sorted(flat + falling)
    if not blocks:
        return None
    worst = max(blocks, key=lambda b: cosine[b] or 0.0)
    before = [b for b in range(worst + 1) if cosine[b] is not None]
    best, richest = min(before, key=lambda b: cosine[b] or 0.0), max(before, key=lambda b: share[b] or 0.0)

    def then(block: int, value: float | None) -> str:
        return f", after {value:.2f} in block {block}" if block != worst else ""

    evidence = [
        chart.evidence("token_cosine", "", f"{cosine[worst]:.2f} in block {worst}{then(best, cosine[best])}", worst),
        chart.evidence("effective_rank", "share", f"{share[worst]:.2f} of its largest value in block {worst}"
                       f"{then(richest, share[richest])}", worst),
    ]  # fmt: skip
    evidence += _function_lost(chart, worst)
    title = "Tokens have collapsed" if flat else "Tokens are collapsing"
    text = (
        f"The tokens of {blocks_text(blocks)} {'lie close to one line' if flat else 'draw together'}: "
        f"their similarity is {cosine[worst]:.2f} and their "
        f"effective rank {rank[worst]:.1f} in block {worst}. {_trend(cosine, best, worst)}"
    )
    finding = _finding("token_collapse", title, "severe" if flat else "warning", blocks, text, evidence)
    return finding | {"why": cause(chart, blocks)}


def _trend(cosine: list[float | None], best: int, worst: int) -> str:
    if best == worst or (cosine[worst] or 0) - (cosine[best] or 0) < threshold("alike_rise"):
        return "It is so from the first block on."
    return f"They were furthest apart in block {best} and have come together since."


def _function_lost(chart: DiagnosisView, worst: int) -> list[dict[str, Any]]:
    probe = [v for v in chart.series("depth_probe")[: worst + 1] if v is not None]
    if not probe or probe[-1] > max(probe) - threshold("probe_fall"):
        return []
    text = f"nearest-neighbour accuracy {probe[-1]:.2f} in block {worst}, after {max(probe):.2f}"
    return [chart.evidence("depth_probe", "", text)]


def cause(chart: DiagnosisView, blocks: list[int]) -> str:
    """Why the tokens of these blocks come together, as far as the vitals tell."""
    without = [b for b in blocks if "attn" not in chart.data["model"]["blocks"][b]["joins"]]
    if any(str(r).startswith("no_skip") for r in chart.data["model"]["remedies"]) or len(without) == len(blocks):
        return "a skip is missing there, so attention's averages replace the tokens instead of being added"
    for branch, words in (("attn", "attention"), ("mlp", "the MLP")):
        ratio = chart.at("branch_ratio", branch, blocks)
        if ratio and max(ratio) >= threshold("drowned_skip"):
            return f"{words} adds up to {max(ratio):.1f} times what the skip carries, so the skip is drowned"
    entropy = chart.at("attention_entropy", "share", blocks)
    if entropy and sum(entropy) / len(entropy) >= threshold("low_pass"):
        mean = sum(entropy) / len(entropy)
        return f"attention averages there (entropy {mean:.2f} of its largest value), which is a low-pass filter"
    return "no single cause stands out in what was measured"


def uniform_attention(chart: DiagnosisView) -> Finding | None:
    """Maps are averages (entropy, divergence of rows), and what attention adds says how much that matters."""
    entropy, rows = chart.series("attention_entropy", "share"), chart.series("query_sensitivity")
    adds, turn = chart.series("branch_ratio", "attn"), chart.series("block_influence")
    blocks = [
        b
        for b in range(chart.depth)
        if (e := entropy[b]) is not None
        and (r := rows[b]) is not None
        and adds[b] is not None
        and e >= threshold("uniform_entropy")
        and r <= threshold("uniform_divergence")
    ]
    if not blocks:
        return None
    b = blocks[-1]
    evidence = [
        chart.evidence("attention_entropy", "share", f"{entropy[b]:.3f} of its largest value in block {b}", b),
        chart.evidence("query_sensitivity", "", f"{rows[b]:.4f} in block {b}", b),
        chart.evidence("branch_ratio", "attn", f"attention adds {adds[b]:.2f} of the tokens' size in block {b}", b),
    ]
    if turn[b] is not None:
        evidence.append(chart.evidence("block_influence", "", f"{turn[b]:.3f} in block {b}", b))
    text = f"Attention of {blocks_text(blocks)} is an average: every query weighs all keys alike."
    weak = all((adds[b] or 0) < threshold("weak_branch") for b in blocks)
    if len(blocks) == chart.depth and weak:
        text += " Every block does that, and adds little: this is how a model starts."
        return _finding("untrained", "It looks untrained", "note", blocks, text, evidence)
    return _finding("uniform_attention", "Attention averages", "note" if weak else "warning", blocks, text, evidence)


def idle_blocks(chart: DiagnosisView) -> Finding | None:
    """A block neither turns its tokens (influence, branch ratios) nor changes what they tell of images (CKA)."""
    turn, same = chart.series("block_influence"), chart.series("layer_cka")
    attn, mlp = chart.series("branch_ratio", "attn"), chart.series("branch_ratio", "mlp")
    blocks = [
        b
        for b in range(chart.depth)
        if (t := turn[b]) is not None
        and (c := same[b]) is not None
        and t <= threshold("idle_turn")
        and c >= threshold("same_tokens")
        and max(attn[b] or 0, mlp[b] or 0) <= threshold("idle_branch")
    ]
    if not blocks:
        return None
    b = blocks[-1]
    evidence = [
        chart.evidence("block_influence", "", f"{turn[b]:.4f} in block {b}", b),
        chart.evidence("layer_cka", "", f"{same[b]:.3f} with the block before", b),
    ]
    text = f"The tokens leave {blocks_text(blocks)} as they came: such blocks could be left out."
    return _finding("idle_blocks", "Blocks that do nothing", "note", blocks, text, evidence)


def similar_maps(chart: DiagnosisView) -> Finding | None:
    """Many blocks have the same maps, and CKA says what that does to the tokens."""
    alike, same = chart.series("similar_blocks"), chart.series("layer_cka")
    entropy = chart.series("attention_entropy", "share")
    blocks = [
        b
        for b in range(chart.depth)
        if (n := alike[b]) is not None
        and same[b] is not None
        and (entropy[b] or 0) < threshold("uniform_entropy")  # averages are alike, and a finding of their own
        and n >= max(1.0, threshold("similar_blocks") * (chart.depth - 1))
    ]
    if not blocks:
        return None
    b = max(blocks, key=lambda b: alike[b] or 0)
    evidence = [
        chart.evidence("similar_blocks", "", f"block {b} attends like {alike[b]:.0f} of {chart.depth - 1} others", b),
        chart.evidence("layer_cka", "", f"{same[b]:.3f} with the block before", b),
    ]
    text = f"The attention maps of {blocks_text(blocks)} are nearly the same, so depth adds little there."
    return _finding("similar_maps", "Blocks attend alike", "warning", blocks, text, evidence)


def ill_conditioned(chart: DiagnosisView) -> Finding | None:
    """What attention adds is ill-conditioned before the skip, and its maps have low rank, in half of the blocks."""
    branch, summed = chart.series("log_condition", "attn.robust"), chart.series("log_condition", "attn+skip.robust")
    rank = chart.series("equivalent_rank", "share")
    blocks = [
        b
        for b in range(chart.depth)
        if (c := branch[b]) is not None
        and (s := summed[b]) is not None
        and (r := rank[b]) is not None
        and c >= threshold("ill_attention")
        and c - s >= threshold("skip_help")
        and r <= threshold("low_map_rank")
    ]
    if len(blocks) * 2 < chart.depth:  # single blocks of this kind are common
        return None
    b = max(blocks, key=lambda b: branch[b] or 0)
    evidence = [
        chart.evidence(
            "log_condition", "attn.robust", f"{branch[b]:.1f} in block {b}, {summed[b]:.1f} with the skip", b
        ),
        chart.evidence("equivalent_rank", "share", f"maps of block {b} have {rank[b]:.2f} of full rank", b),
    ]
    text = f"What attention adds in {blocks_text(blocks)} is ill-conditioned; the skip repairs it."
    return _finding("ill_conditioned", "Attention is ill-conditioned", "note", blocks, text, evidence)


def outlier_tokens(chart: DiagnosisView) -> Finding | None:
    """A few tokens are far larger than the rest; map similarity stands beside it."""
    count, ratio = chart.series("token_norm_outliers"), chart.series("token_norm_outliers", "ratio")
    maps = chart.series("attention_cosine")
    blocks = [
        b
        for b in range(chart.depth)
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
        chart.evidence("token_norm_outliers", "ratio", f"{ratio[b]:.1f} times the median norm in block {b}", b),
        chart.evidence("attention_cosine", "", f"map similarity {maps[b]:.2f} there", b),
    ]
    text = (
        f"In {blocks_text(blocks)} about {count[b]:.0f} tokens an image are far larger than the rest. Large models "
        "use such tokens as registers; dense tasks suffer from them."
    )
    return _finding("outlier_tokens", "A few huge tokens", "note", blocks, text, evidence)


RULES: tuple[Callable[[DiagnosisView], Finding | None], ...] = (
    not_finite, token_collapse, uniform_attention, similar_maps, idle_blocks, ill_conditioned, outlier_tokens,
)  # fmt: skip

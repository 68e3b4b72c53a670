"""Rules: each looks for one finding in the vitals of a diagnosis.

A finding rests on at least two families of vitals. It names its blocks, the level and the trend of what was measured.

The thresholds are heuristics. Each of them separates the models that it was calibrated on (`source`), which does not
imply that it separates yours. This is why a finding needs two families of vitals and lists its evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unsmooth.results.diagnosis import (
    Broken,
    Evidence,
    Finding,
    Limit,
    ModelInfo,
    Reference,
    Series,
    Severity,
    VitalResult,
    round_values,
)
from unsmooth.utils.text import blocks_text


@dataclass(frozen=True)
class Threshold:
    """A number that a rule compares a vital with, what it is about, and the models it was calibrated on.

    The limit of a single value also names its vital, its part and the side of the limit that is abnormal.
    """

    value: float
    meaning: str
    source: str
    vital: str = ""
    part: str = ""
    above: bool = True


SKIPLESS = "6 to 48 blocks without the attention skip, untrained and trained on CIFAR-10 for 250 to 600 steps"
TRAINED = "6 to 48 blocks with skips, trained on CIFAR-10 for 250 to 600 steps"
SALIENCY = "a saliency fine-tune of DINOv2 ViT-S/14 on 60 photographs"
RANDOM = "DeiT-Ti with 6 to 48 blocks, untrained"

THRESHOLDS: dict[str, Threshold] = {
    "collapsed_similarity": Threshold(
        0.9,
        "token similarity of collapsed tokens",
        f"{SKIPLESS}: at least 0.92 from block 1; {TRAINED}: at most 0.78; {RANDOM}: 0.71",
        "token_cosine",
    ),
    "similarity_rise": Threshold(
        0.15,
        "rise of token similarity above its lowest earlier value",
        f"{SALIENCY}: 0.10 at block 8, 0.20 at block 10; {TRAINED}: 0.12 and 0.16 (6, 12), 0.23 and 0.26 (24, 48)",
    ),
    "least_similarity": Threshold(
        0.4,
        "token similarity that a rise must reach",
        f"{SALIENCY}: 0.42 in its first block, which is healthy",
    ),
    "collapsed_rank_share": Threshold(
        0.05,
        "effective rank of collapsed tokens, as a share of min(n, d)",
        f"{SKIPLESS}: at most 0.03 from block 1; {TRAINED}: at least 0.09; {RANDOM}: 0.20",
        "effective_rank",
        "share",
        above=False,
    ),
    "collapsed_rank": Threshold(
        1.5,
        "effective rank of collapsed tokens in any model",
        "parallel tokens have rank 1",
        "effective_rank",
        above=False,
    ),
    "rank_fall": Threshold(
        0.4,
        "relative fall of effective rank below its highest earlier value",
        f"{SALIENCY}: 0.25 at block 8, 0.44 at block 10; {TRAINED}: 0.16 and 0.30 (6, 12), 0.51 and 0.62 (24, 48)",
        above=False,
    ),
    "far_rise": Threshold(
        0.3,
        "rise of token similarity that is suspicious by itself",
        f"twice `similarity_rise`; {TRAINED}: at most 0.26",
    ),
    "far_fall": Threshold(
        0.65,
        "relative fall of effective rank that is suspicious by itself",
        f"the largest fall of {TRAINED} is 0.62",
        above=False,
    ),
    "uniform_entropy": Threshold(
        0.97, "entropy of uniform attention, as a share of log m", f"{RANDOM}: 1.00", "attention_entropy", "share"
    ),
    "uniform_sensitivity": Threshold(
        0.01, "query sensitivity of uniform attention", f"{RANDOM}: below 0.001", "query_sensitivity", above=False
    ),
    "weak_branch": Threshold(0.5, "branch ratio below which uniform attention does little harm", f"{RANDOM}: 0.05"),
    "dominant_branch": Threshold(
        3.0,
        "branch ratio at which a branch dominates the skip",
        f"{SALIENCY}: 0.5 to 0.9, then 4.2",
        "branch_ratio",
        "attn",
    ),
    "low_pass": Threshold(0.9, "entropy of smoothing attention, as a share of log m", f"{SALIENCY}: at most 0.77"),
    "idle_influence": Threshold(
        0.01, "block influence of an idle block", f"{RANDOM}: 0.008 to 0.014", "block_influence", above=False
    ),
    "idle_branch": Threshold(0.1, "branch ratio of an idle branch", f"{RANDOM}: 0.05"),
    "idle_cka": Threshold(0.99, "CKA of an idle block with the previous block", RANDOM, "layer_cka"),
    "similar_blocks": Threshold(0.5, "share of the other blocks with similar maps", f"{SALIENCY}: none"),
    "ill_conditioned_branch": Threshold(
        9.0,
        "robust log condition number of the attention branch",
        f"{SALIENCY}: 7.3 to 15",
        "log_condition",
        "attn.robust",
    ),
    "skip_reduction": Threshold(3.0, "reduction of that number by the skip", f"{SALIENCY}: 2.6 to 7.5"),
    "low_map_rank": Threshold(
        0.3,
        "equivalent rank of maps, as a share of their size",
        f"{SALIENCY}: 0.09 to 0.55",
        "equivalent_rank",
        "share",
        above=False,
    ),
    "outlier_ratio": Threshold(
        5.0, "largest token norm over the median norm", f"{SALIENCY}: at most 2.4", "token_norm_outliers", "ratio"
    ),
}


def threshold(name: str) -> float:
    return THRESHOLDS[name].value


@dataclass(frozen=True)
class DiagnosisView:
    """What the rules read of a diagnosis: means by vital, part and block."""

    model: ModelInfo
    vitals: dict[str, VitalResult]
    reference: Reference | None = None
    broken: Broken | None = None

    @property
    def depth(self) -> int:
        return len(self.model.blocks)

    def means(self, key: str, part: str = "") -> list[float | None]:
        """Mean of a vital by block; None where it has no value."""
        vital = self.vitals.get(key)
        return self._means(vital.parts if vital is not None else {}, part)

    def means_at_random(self, key: str, part: str = "") -> list[float | None]:
        """The same at random initialisation."""
        return self._means(self.reference.vitals.get(key, {}) if self.reference is not None else {}, part)

    def _means(self, parts: dict[str, Series], part: str) -> list[float | None]:
        series = parts.get(part, [None] * self.depth)
        return [s.mean if s is not None and isinstance(s.mean, float) else None for s in series]

    def means_in(self, blocks: list[int], key: str, part: str = "") -> list[float]:
        """Means of these blocks, as far as they have a value."""
        means = self.means(key, part)
        return [mean for b in blocks if (mean := means[b]) is not None]

    def evidence(
        self, key: str, part: str, text: str, block: int | None = None, name: str = "", limit: float | None = None
    ) -> Evidence:
        """Evidence with the value at random initialisation, where there is one.

        With the `name` of a threshold, its limit is that of the threshold, or `limit` if it depends on the block.
        """
        random = self.means_at_random(key, part)[block] if block is not None else None
        suffix = f" (random initialisation: {random:.2g})" if random is not None else ""
        made = Evidence(key, part, self.vitals[key].family, text + suffix, block)
        if block is not None:
            made.value = round_values(self.means(key, part)[block])
        if name and made.value is not None:
            used = THRESHOLDS[name]
            made.limit = round_values(used.value if limit is None else limit)
            made.margin = round_values((made.value - made.limit) * (1 if used.above else -1))
            made.threshold, made.source = name, used.source
        return made


def not_finite(view: DiagnosisView) -> Finding | None:
    """The first block and branch with NaN or infinity."""
    if view.broken is None:
        return None
    block, where = view.broken.block, view.broken.where
    text = f"NaN or infinity first appears in the {where} of block {block}. Later blocks cannot be measured."
    return Finding("not_finite", "NaN or infinity", "severe", [block], text, [])


@dataclass(frozen=True)
class TokenCurves:
    """Token similarity and effective rank by block, and their limits: by level, and by trend since the best block."""

    cosine: list[float | None]
    share: list[float | None]
    rank: list[float | None]

    @classmethod
    def of(cls, view: DiagnosisView) -> TokenCurves:
        return cls(view.means("token_cosine"), view.means("effective_rank", "share"), view.means("effective_rank"))

    def lowest(self, b: int) -> float:
        """The lowest similarity up to a block."""
        return min(v for v in self.cosine[: b + 1] if v is not None)

    def highest(self, b: int) -> float:
        """The highest share of rank up to a block."""
        return max(v for v in self.share[: b + 1] if v is not None)

    def similarity_limit(self, b: int, rise: str = "similarity_rise") -> float:
        """The similarity from which on a block counts as risen."""
        return max(threshold("least_similarity"), self.lowest(b) + threshold(rise))

    def share_limit(self, b: int, fall: str = "rank_fall") -> float:
        """The share of rank up to which a block counts as fallen."""
        return self.highest(b) * (1 - threshold(fall))

    def high(self, b: int) -> bool:
        """Similarity is that of collapsed tokens."""
        c = self.cosine[b]
        return c is not None and c >= threshold("collapsed_similarity")

    def low(self, b: int) -> bool:
        """Effective rank is that of collapsed tokens."""
        s, r = self.share[b], self.rank[b]
        by_share = s is not None and s <= threshold("collapsed_rank_share")
        return by_share or (r is not None and r <= threshold("collapsed_rank"))

    def risen(self, b: int, rise: str = "similarity_rise") -> bool:
        c = self.cosine[b]
        return c is not None and c >= self.similarity_limit(b, rise)

    def fallen(self, b: int, fall: str = "rank_fall") -> bool:
        s = self.share[b]
        return s is not None and s <= self.share_limit(b, fall)

    def collapsed(self, b: int) -> bool:
        return self.high(b) and self.low(b)

    def collapsing(self, b: int) -> bool:
        return (self.high(b) or self.risen(b)) and (self.low(b) or self.fallen(b))

    def one_sided(self, b: int) -> bool:
        """One of the two is far past its limit."""
        far = self.high(b) or self.low(b) or self.risen(b, "far_rise") or self.fallen(b, "far_fall")
        return far and not self.collapsing(b)

    def evidence(
        self, view: DiagnosisView, b: int, rise: str = "similarity_rise", fall: str = "rank_fall"
    ) -> list[Evidence]:
        """Similarity and rank of a block, each with its limit by level if it is past that, by trend otherwise."""
        c, s = self.cosine[b], self.share[b]
        made = []
        if c is not None:
            best = min((i for i in range(b + 1) if self.cosine[i] is not None), key=lambda i: self.cosine[i] or 0.0)
            since = f", {self.cosine[best]:.2f} in block {best}" if best != b else ""
            name, limit = ("collapsed_similarity", None) if self.high(b) else (rise, self.similarity_limit(b, rise))
            made.append(view.evidence("token_cosine", "", f"{c:.2f} in block {b}{since}", b, name, limit))
        if s is not None:
            best = max((i for i in range(b + 1) if self.share[i] is not None), key=lambda i: self.share[i] or 0.0)
            since = f", {self.share[best]:.2f} in block {best}" if best != b else ""
            text = f"{s:.2f} of its maximum in block {b}{since}"
            r = self.rank[b]
            if self.low(b) and s > threshold("collapsed_rank_share"):  # few tokens: the rank itself is near 1
                return [*made, view.evidence("effective_rank", "", f"{r:.2f} in block {b}", b, "collapsed_rank")]
            name, limit = ("collapsed_rank_share", None) if self.low(b) else (fall, self.share_limit(b, fall))
            made.append(view.evidence("effective_rank", "share", text, b, name, limit))
        return made


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


def uniform_attention(view: DiagnosisView) -> Finding | None:
    """Attention is uniform (entropy, query sensitivity); the branch ratio shows how much that matters."""
    entropy, sensitivity = view.means("attention_entropy", "share"), view.means("query_sensitivity")
    ratio, influence = view.means("branch_ratio", "attn"), view.means("block_influence")
    blocks = [
        b
        for b in range(view.depth)
        if (e := entropy[b]) is not None
        and (s := sensitivity[b]) is not None
        and ratio[b] is not None
        and e >= threshold("uniform_entropy")
        and s <= threshold("uniform_sensitivity")
    ]
    if not blocks:
        return None
    b = blocks[-1]
    evidence = [
        view.evidence(
            "attention_entropy", "share", f"{entropy[b]:.3f} of its maximum in block {b}", b, "uniform_entropy"
        ),
        view.evidence("query_sensitivity", "", f"{sensitivity[b]:.4f} in block {b}", b, "uniform_sensitivity"),
        view.evidence("branch_ratio", "attn", f"{ratio[b]:.2f} times the norm of the skip in block {b}", b),
    ]
    if influence[b] is not None:
        evidence.append(view.evidence("block_influence", "", f"{influence[b]:.3f} in block {b}", b))
    text = f"Attention in {blocks_text(blocks)} is an average: every query weighs all keys equally."
    weak = all((ratio[b] or 0) < threshold("weak_branch") for b in blocks)
    if len(blocks) == view.depth and weak:
        text += " This holds in every block, and the branches add little, as in an untrained model."
        return Finding("untrained", "The model looks untrained", "note", blocks, text, evidence)
    severity: Severity = "note" if weak else "warning"
    return Finding("uniform_attention", "Attention is uniform", severity, blocks, text, evidence)


def idle_blocks(view: DiagnosisView) -> Finding | None:
    """A block changes neither the direction of its tokens (influence, branch ratio) nor their representation (CKA)."""
    influence, cka = view.means("block_influence"), view.means("layer_cka")
    attn, mlp = view.means("branch_ratio", "attn"), view.means("branch_ratio", "mlp")
    blocks = [
        b
        for b in range(view.depth)
        if (i := influence[b]) is not None
        and (c := cka[b]) is not None
        and i <= threshold("idle_influence")
        and c >= threshold("idle_cka")
        and max(attn[b] or 0, mlp[b] or 0) <= threshold("idle_branch")
    ]
    if not blocks:
        return None
    b = blocks[-1]
    evidence = [
        view.evidence("block_influence", "", f"{influence[b]:.4f} in block {b}", b, "idle_influence"),
        view.evidence("layer_cka", "", f"{cka[b]:.3f} with the previous block", b, "idle_cka"),
    ]
    text = f"The tokens hardly change in {blocks_text(blocks)}. These blocks could be removed."
    return Finding("idle_blocks", "Idle blocks", "note", blocks, text, evidence)


def similar_maps(view: DiagnosisView) -> Finding | None:
    """Many blocks have the same attention maps; CKA shows the effect on the tokens."""
    similar, cka = view.means("similar_blocks"), view.means("layer_cka")
    entropy = view.means("attention_entropy", "share")
    blocks = [
        b
        for b in range(view.depth)
        if (n := similar[b]) is not None
        and cka[b] is not None
        and (entropy[b] or 0) < threshold("uniform_entropy")  # uniform maps are similar, and a finding of their own
        and n >= max(1.0, threshold("similar_blocks") * (view.depth - 1))
    ]
    if not blocks:
        return None
    b = max(blocks, key=lambda b: similar[b] or 0)
    evidence = [
        view.evidence(
            "similar_blocks",
            "",
            f"block {b} has maps similar to {similar[b]:.0f} of {view.depth - 1} others",
            b,
            "similar_blocks",
            max(1.0, threshold("similar_blocks") * (view.depth - 1)),
        ),
        view.evidence("layer_cka", "", f"{cka[b]:.3f} with the previous block", b),
    ]
    text = f"The attention maps of {blocks_text(blocks)} are nearly the same, so depth adds little there."
    return Finding("similar_maps", "Similar attention maps", "warning", blocks, text, evidence)


def ill_conditioned(view: DiagnosisView) -> Finding | None:
    """In half of the blocks the attention branch is ill-conditioned without the skip, and its maps have low rank."""
    branch, summed = view.means("log_condition", "attn.robust"), view.means("log_condition", "attn+skip.robust")
    rank = view.means("equivalent_rank", "share")
    blocks = [
        b
        for b in range(view.depth)
        if (c := branch[b]) is not None
        and (s := summed[b]) is not None
        and (r := rank[b]) is not None
        and c >= threshold("ill_conditioned_branch")
        and c - s >= threshold("skip_reduction")
        and r <= threshold("low_map_rank")
    ]
    if len(blocks) * 2 < view.depth:  # single blocks of this kind are common
        return None
    b = max(blocks, key=lambda b: branch[b] or 0)
    evidence = [
        view.evidence(
            "log_condition",
            "attn.robust",
            f"{branch[b]:.1f} in block {b}, {summed[b]:.1f} with the skip",
            b,
            "ill_conditioned_branch",
        ),
        view.evidence("equivalent_rank", "share", f"{rank[b]:.2f} of full rank in block {b}", b, "low_map_rank"),
    ]
    text = f"The output of attention in {blocks_text(blocks)} is ill-conditioned. The sum with the skip is not."
    return Finding("ill_conditioned", "Attention is ill-conditioned", "note", blocks, text, evidence)


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


RULES: tuple[Callable[[DiagnosisView], Finding | None], ...] = (
    not_finite, token_collapse, one_sided, uniform_attention, similar_maps, idle_blocks, ill_conditioned,
    outlier_tokens,
)  # fmt: skip


def limits(view: DiagnosisView) -> list[Limit]:
    """The limits of the vitals that were measured, for their curves."""
    made = [
        Limit(name, t.vital, t.part, t.above, [t.value] * view.depth, t.meaning, t.source)
        for name, t in THRESHOLDS.items()
        if t.vital and any(value is not None for value in view.means(t.vital, t.part))
    ]
    curves, blocks = TokenCurves.of(view), range(view.depth)
    rise, fall = THRESHOLDS["similarity_rise"], THRESHOLDS["rank_fall"]
    if any(value is not None for value in curves.cosine):
        values = [None if curves.cosine[b] is None else round_values(curves.similarity_limit(b)) for b in blocks]
        made.append(Limit("similarity_rise", "token_cosine", "", True, values, rise.meaning, rise.source))
    if any(value is not None for value in curves.share):
        shares = [None if curves.share[b] is None else curves.share_limit(b) for b in blocks]
        made.append(
            Limit("rank_fall", "effective_rank", "share", False, round_values(shares), fall.meaning, fall.source)
        )
        ranks = [  # the same limit on the scale of the rank itself
            None if (s := shares[b]) is None or not (own := curves.share[b]) or (r := curves.rank[b]) is None
            else s * r / own
            for b in blocks
        ]  # fmt: skip
        made.append(Limit("rank_fall", "effective_rank", "", False, round_values(ranks), fall.meaning, fall.source))
    return made

"""Rules: each looks for one finding in the vitals of a diagnosis.

A finding rests on at least two families of vitals. It names its blocks, the level and the trend of what was measured.
"""

from __future__ import annotations

from collections.abc import Callable

from unsmooth.diagnosis.rules.attention import idle_blocks, ill_conditioned, similar_maps, uniform_attention
from unsmooth.diagnosis.rules.curves import TokenCurves
from unsmooth.diagnosis.rules.outliers import outlier_activations, outlier_tokens
from unsmooth.diagnosis.rules.sinks import broadcasting_sinks, idle_sinks
from unsmooth.diagnosis.rules.thresholds import THRESHOLDS
from unsmooth.diagnosis.rules.tokens import not_finite, one_sided, token_collapse
from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.results.measured import round_values
from unsmooth.results.verdict import Finding, Limit

RULES: tuple[Callable[[DiagnosisView], Finding | None], ...] = (
    not_finite, token_collapse, one_sided, uniform_attention, similar_maps, idle_blocks, ill_conditioned,
    outlier_tokens, idle_sinks, broadcasting_sinks, outlier_activations,
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

"""What a verdict may never say, for any curves."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.diagnosis.test_verdict import MADE_UP, healthy, view
from unsmooth.diagnosis.rules import limits
from unsmooth.diagnosis.rules.thresholds import THRESHOLDS
from unsmooth.diagnosis.verdict import STATES, reach_verdict
from unsmooth.results.verdict import Finding, Verdict

DEPTH, TOKENS = 6, 200
Series = dict[tuple[str, str], list[float]]
shares = st.floats(0.005, 1.0)
cosines = st.floats(0.0, 1.0)


@st.composite
def curves(draw: st.DrawFn) -> Series:
    """Any similarity and rank, with or without what other findings rest on."""
    cosine = draw(st.lists(cosines, min_size=DEPTH, max_size=DEPTH))
    share = draw(st.lists(shares, min_size=DEPTH, max_size=DEPTH))
    others: Series = {}
    for key in draw(st.sets(st.sampled_from([key for key in MADE_UP if key != "one_sided"]))):
        others |= {name: values[-DEPTH:] for name, values in MADE_UP[key].items()}
    return others | tokens(cosine, share)


def tokens(cosine: list[float], share: list[float]) -> Series:
    return {
        ("token_cosine", ""): cosine,
        ("effective_rank", ""): [max(1.0, s * TOKENS) for s in share],
        ("effective_rank", "share"): share,
    }


def conclude(series: Series) -> tuple[list[Finding], Verdict]:
    return reach_verdict(view(series))


def rank_of(state: str) -> int:
    return STATES.index(state)


@settings(deadline=None)
@given(curves(), st.integers(0, DEPTH - 1), st.floats(0, 1), st.floats(0, 1))
def test_worse_tokens_never_give_a_better_state(series: Series, start: int, rise: float, fall: float) -> None:
    """From a block on, similarity moves towards 1 or rank towards 0; the blocks before it stay."""
    before = conclude(series)[1]
    cosine, share = series["token_cosine", ""], series["effective_rank", "share"]
    step = min(rise, 1 - max(cosine[start:]))  # the same for all, so that no trend inside the worse part is flattened
    worse = [c + step if b >= start else c for b, c in enumerate(cosine)]
    lower = [max(0.005, s * (1 - fall)) if b >= start else s for b, s in enumerate(share)]
    if all(s * (1 - fall) >= 0.005 for s in share[start:]):
        assert rank_of(conclude(series | tokens(worse, lower))[1].state) >= rank_of(before.state)
    assert rank_of(conclude(series | tokens(worse, share))[1].state) >= rank_of(before.state)


@settings(deadline=None)
@given(curves())
def test_a_state_follows_from_the_findings(series: Series) -> None:
    findings, verdict = conclude(series)
    keys = {finding.key for finding in findings}
    assert (verdict.state in ("collapsing", "collapsed")) == ("token_collapse" in keys)
    if any(finding.severity != "note" for finding in findings) and verdict.state != "untrained":
        assert rank_of(verdict.state) >= rank_of("suspicious")
    if verdict.state == "healthy":
        assert all(finding.severity == "note" for finding in findings)


@settings(deadline=None)
@given(curves())
def test_no_block_of_a_finding_is_called_healthy(series: Series) -> None:
    findings, verdict = conclude(series)
    said = f"{verdict.text} {' '.join(finding.text for finding in findings)}"
    assert "healthy" not in said
    tokens_of = {b for f in findings if f.key in ("token_collapse", "one_sided") for b in f.blocks}
    for sentence in re.findall(r"Blocks? ([\d–, ]+) (?:do|does) not\.", verdict.text):
        assert not tokens_of & named(sentence)


def named(spans: str) -> set[int]:
    blocks: set[int] = set()
    for span in spans.split(", "):
        first, _, last = span.partition("–")
        blocks |= set(range(int(first), int(last or first) + 1))
    return blocks


@settings(deadline=None)
@given(curves())
def test_one_family_far_past_its_limit_is_never_healthy(series: Series) -> None:
    state = conclude(series)[1].state
    cosine, share = series["token_cosine", ""], series["effective_rank", "share"]
    far = max(cosine) >= THRESHOLDS["collapsed_similarity"].value
    far |= min(share) <= THRESHOLDS["collapsed_rank_share"].value
    for b in range(DEPTH):
        far |= cosine[b] - min(cosine[: b + 1]) >= 0.3 + 1e-9 and cosine[b] >= 0.4
        far |= share[b] < max(share[: b + 1]) * 0.35 - 1e-9
    assert not far or rank_of(state) >= rank_of("suspicious")


@settings(deadline=None)
@given(curves())
def test_nothing_is_fine_while_a_number_is_past_its_limit(series: Series) -> None:
    verdict = conclude(series)[1]
    if "No action needed" in verdict.text:
        for limit in limits(view(series)):
            if limit.vital in ("token_cosine", "effective_rank"):
                for value, bound in zip(series[limit.vital, limit.part], limit.values, strict=True):
                    assert bound is not None
                    assert value < bound + 1e-5 if limit.above else value > bound - 1e-5 * max(1, bound)


@settings(deadline=None)
@given(curves())
def test_every_finding_has_a_value_past_its_limit_with_a_source(series: Series) -> None:
    for finding in conclude(series)[0]:
        assert finding.value is not None and finding.limit is not None and finding.margin is not None
        assert finding.margin >= -1e-6, finding
        assert finding.source
        for evidence in finding.evidence:
            assert (evidence.limit is None) == (evidence.source == "")


@settings(deadline=None)
@given(curves())
def test_levels_and_trends_are_stated_apart(series: Series) -> None:
    verdict = conclude(series)[1]
    assert "rises" not in verdict.levels and "falls" not in verdict.levels
    assert "similarity rises by" in verdict.trends and "effective rank falls by" in verdict.trends
    assert f"{max(series['token_cosine', '']):.2f}" in verdict.levels


def test_a_healthy_model_is_still_healthy() -> None:
    assert conclude(healthy(DEPTH))[1].state == "healthy"

"""Alarms: the limits in numbers, when they are raised, and a run that is made to collapse."""

from __future__ import annotations

from typing import Any

import pytest

from unsmooth.monitoring.alarms import RULES, AlarmState
from unsmooth.monitoring.observe import Breakage

HEALTHY: dict[str, list[Any]] = {
    "attention_entropy.share": [0.6, 0.7],
    "max_logit.heads": [[5.0, 8.0], [3.0, 9.0]],
    "effective_rank": [8.0, 6.0],
    "token_norm_outliers.ratio": [2.0, 2.5],
}


def check(*measured: dict[str, list[Any]], limits: dict[str, float] | None = None) -> list[tuple[int, str, int | None]]:
    state = AlarmState(limits or {})
    alarms = [alarm for step, curves in enumerate(measured) for alarm in state.check(step, HEALTHY | curves, None)]
    return [(alarm.step, alarm.kind, alarm.block) for alarm in alarms]


# The curve, a value in block 1 that is just inside the limit and one that is past it, after the healthy measurement.
LIMITS = {
    "entropy_collapse": ("attention_entropy.share", 0.11, 0.1),
    "max_logit": ("max_logit.heads", [3.0, 49.0], [3.0, 50.0]),
    "falling_rank": ("effective_rank", 2.5, 2.4),
    "norm_outliers": ("token_norm_outliers.ratio", 9.9, 10.0),
}


def test_every_rule_has_a_case_and_a_source() -> None:
    assert set(LIMITS) == set(RULES)
    assert all(rule.source and rule.action.endswith(".") for rule in RULES.values())


@pytest.mark.parametrize("kind", LIMITS)
def test_limits(kind: str) -> None:
    curve, inside, past = LIMITS[kind]
    first = HEALTHY[curve][0]
    assert check({}, {curve: [first, inside]}) == []
    assert check({}, {curve: [first, past]}) == [(1, kind, 1)]
    assert check({}, {curve: [None, past]}) == [(1, kind, 1)]


@pytest.mark.parametrize(
    ("curve", "start", "later"),
    [
        ("max_logit.heads", [[280.0], [9.0]], [[839.0], [9.0]]),
        ("token_norm_outliers.ratio", [40.0, 2.0], [119.0, 2.0]),
        ("attention_entropy.share", [0.05, 0.7], [0.026, 0.7]),
    ],
)
def test_a_model_that_starts_past_the_level_is_judged_by_its_change(curve: str, start: Any, later: Any) -> None:
    """A pretrained model may have large logits or outlier tokens: that is not an event of this run."""
    assert check({curve: start}, {curve: start}, {curve: later}) == []


def test_collapsed_tokens_raise_an_alarm_from_the_start() -> None:
    assert check({"effective_rank": [8.0, 1.2]}) == [(0, "falling_rank", 1)]


def test_rank_falls_from_its_highest_value_in_the_run() -> None:
    ranks = [{"effective_rank": [8.0, value]} for value in (6.0, 12.0, 5.0, 4.7)]
    assert check(*ranks) == [(3, "falling_rank", 1)]


def test_an_alarm_is_raised_once_while_it_lasts_and_again_after_a_recovery() -> None:
    hot = {"max_logit.heads": [[60.0], [90.0]]}
    assert check(hot | {"max_logit.heads": [[5.0], [5.0]]}, hot, hot, {}, hot) == [
        (1, "max_logit", 1),
        (4, "max_logit", 1),
    ]


def test_limits_of_the_caller_replace_level_and_change() -> None:
    assert check({}, limits={"max_logit": 9.0}) == [(0, "max_logit", 1)]
    assert check({}, {"effective_rank": [8.0, 1.0]}, limits={"falling_rank": 0.5}) == []


def test_an_alarm_says_what_happened_and_what_to_do() -> None:
    state = AlarmState({})
    state.check(0, HEALTHY, None)
    hot = HEALTHY | {"max_logit.heads": [[60.0, 1.0], [1.0, 120.0]]}
    broken = Breakage(1, "block 1 broke first, in its MLP branch")
    logit, finite = state.check(200, hot, broken)
    assert (logit.value, logit.limit, logit.block) == (120.0, 50.0, 1)
    assert str(logit).startswith("step 200: max_logit: the largest attention logit of blocks 0–1 is 120 (limit 50), so")
    assert (finite.kind, finite.block, finite.value) == ("non_finite", 1, None)
    assert "lower learning rate" in finite.action


@pytest.mark.slow
def test_a_collapse_raises_its_alarm_before_accuracy_shows_it() -> None:
    """The arms of benchmarks/alarms.py, on one seed and up to the step where the alarm is due."""
    from benchmarks.alarms import run, shown_at

    healthy, growing = run("healthy", 0, steps=241), run("growing_logits", 0, steps=241)
    assert healthy["alarms"] == []
    assert "max_logit" in {alarm.kind for alarm in growing["alarms"]}
    assert shown_at(growing["accuracy"], healthy["accuracy"]) is None
    skipless = run("no_skip", 0, steps=21)
    assert [(alarm.step, alarm.kind) for alarm in skipless["alarms"]] == [(0, "falling_rank")]
    assert shown_at(skipless["accuracy"], {step: healthy["accuracy"][step] for step in (0, 20)}) is None

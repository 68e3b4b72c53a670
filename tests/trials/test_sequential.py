"""The sequential rule: its error rates by simulation, its levels, and trials that stop."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.trials.test_compare import SPECS, small_trial
from unsmooth import UnsmoothError
from unsmooth.results.trial import Trial
from unsmooth.trials import rounds
from unsmooth.trials.arms import plan_arms
from unsmooth.trials.measure import differences
from unsmooth.trials.runs import TrialRuns
from unsmooth.trials.sequential import FIRST_ANALYSIS, decided, interim_confidence, share
from unsmooth.trials.settings import CompareSettings
from unsmooth.trials.statistics import paired_difference


@pytest.mark.parametrize("planned", [2, 3, 5, 10])
def test_the_shares_of_all_analyses_add_up_to_one(planned):
    shares = [share(seeds, planned) for seeds in range(FIRST_ANALYSIS, planned + 1)]
    assert sum(shares) == pytest.approx(1) and all(part > 0 for part in shares)
    assert interim_confidence(0.95, planned, planned) == pytest.approx(1 - 0.05 * shares[-1])


def outcome(by_seed, until, planned, images=200):
    """What a trial ends with whose runs differ from the first arm by given shares of the images."""
    ours = np.arange(images) < np.rint(images * (0.5 + by_seed))[:, None]
    base = np.broadcast_to(np.arange(images) < images // 2, ours.shape)
    for seeds in range(FIRST_ANALYSIS, planned + 1):
        level = interim_confidence(0.95, seeds, planned)
        difference = paired_difference(ours[:seeds], base[:seeds], level)
        if decided(difference, until):
            return ("better" if difference.mean > 0 else "worse") if difference.shown else "within", seeds
    return "open", planned


@pytest.mark.parametrize(("planned", "true", "wrong"), [
    (5, 0.0, ("better", "worse")),  # no difference: no arm may be called better or worse
    (6, 0.0, ("better", "worse")),
    (6, 0.06, ("within", "worse")),  # at the edge of what does not matter: it may not be called small
])  # fmt: skip
def test_the_error_rate_is_at_most_the_nominal_one(planned, true, wrong):
    # All variation is between seeds, which is where the interval is least conservative.
    chance, trials = np.random.default_rng(planned), 1000
    ends = [outcome(true + chance.normal(0, 0.04, planned), 6.0, planned) for _ in range(trials)]
    errors = sum(name in wrong for name, _ in ends)
    assert errors / trials <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / trials)
    if true == 0:
        assert sum(name == "within" for name, _ in ends) > 0  # the rule can decide


@dataclass(frozen=True)
class SimulatedRuns(TrialRuns):
    """A trial whose runs have given accuracies. The images that a run gets right depend on the seed."""

    accuracy: Any = None  # arms × seeds
    order: Any = None  # seeds × images

    def correct(self, arm):
        rows = zip(self.order, self.accuracy[self.arms.index(arm)], strict=True)
        return [dict(enumerate(order < round(order.size * share))) for order, share in list(rows)[: len(self.seeds)]]


def last_look(chance, true, until, planned=3, arms=6, images=40):
    """The differences with which a trial ends whose arms all have the same true difference from the first one."""
    specs = plan_arms(["vit_tiny_patch16_224", *(f"vit_tiny_patch16_224+attn_scale(blocks={i})" for i in range(arms))])
    accuracy = 0.4 + chance.normal(0, 0.08, (1 + arms, planned))
    accuracy[1:] += true
    order = chance.permuted(np.tile(np.arange(images), (planned, 1)), axis=1)
    settings = CompareSettings(seeds=planned, until=until)
    runs = SimulatedRuns(specs, None, settings, None, None, "", accuracy=accuracy.clip(0, 1), order=order)
    for seeds in range(FIRST_ANALYSIS, planned + 1):
        found = differences(runs.with_seeds(seeds), planned)
        if all(decided(difference, until) for difference in found):
            break
    return found


def test_the_error_rate_of_differences_is_that_of_all_arms():
    """Six arms without effect: some interval excludes zero often, after Holm in 5 % of trials at most."""
    chance, trials = np.random.default_rng(0), 400
    ends = [last_look(chance, 0.0, until=12.0) for _ in range(trials)]
    assert sum(any(d.decided for d in end) for end in ends) / trials <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / trials)
    assert sum(any(d.shown for d in end) for end in ends) / trials > 0.1  # the plain interval is not enough


def test_the_error_rate_of_within_is_that_of_each_arm():
    """Six arms at the edge of what does not matter: each is called small in 2.5 % of trials at most, some arm more."""
    chance, trials = np.random.default_rng(0), 400
    ends = [[decided(d, 20.0) and not d.decided for d in last_look(chance, 0.2, until=20.0)] for _ in range(trials)]
    assert np.mean(ends) <= 0.025 + 2 * np.sqrt(0.025 * 0.975 / trials)
    assert np.any(ends, axis=1).mean() > 0.05


def test_looking_without_the_correction_would_err_more_often():
    chance, trials, planned = np.random.default_rng(1), 300, 8
    errors = 0
    for _ in range(trials):
        by_seed = chance.normal(0, 0.04, planned)
        t = [abs(by_seed[:k].mean()) / (by_seed[:k].std(ddof=1) / np.sqrt(k)) for k in range(2, planned + 1)]
        critical = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36]  # Student's t at 95 %, 1 to 7 degrees of freedom
        errors += any(value > bound for value, bound in zip(t, critical, strict=True))
    assert errors / trials > 0.1


def test_a_clear_difference_stops_early():
    name, seeds = outcome(0.2 + np.random.default_rng(0).normal(0, 0.005, 8), 0.3, 8)
    assert name == "better" and seeds < 8


def test_a_trial_stops_when_every_arm_is_within_the_margin(tmp_path):
    stages = []
    trial = small_trial(tmp_path, SPECS[:2], seeds=4, until=100.0, on_stage=stages.append)
    assert trial.seeds == [0, 1] and len(trial["attn_scale"].runs) == 2
    assert trial.stopping.decided and (trial.stopping.seeds, trial.stopping.planned) == (2, 4)
    assert trial.stopping.confidence == pytest.approx(1 - 0.05 * (2 / 4) ** 3)
    said = "Stopped after 2 of 4 seeds: the difference is within ±100 points for attn_scale."
    assert trial.stopping.text == said and said in trial.verdict.lines and said in stages
    assert "Stopped after 2 of 4 seeds" in " ".join(str(trial).split())
    assert said in (tmp_path / "report.html").read_text()
    assert len(list(tmp_path.rglob("result.json"))) == 4
    assert Trial.from_json(tmp_path / "trial.json") == trial
    assert small_trial(tmp_path, SPECS[:2], seeds=4, until=100.0).seeds == [0, 1]


def test_a_trial_that_is_not_decided_runs_all_seeds(tmp_path):
    trial = small_trial(tmp_path, SPECS[:2], seeds=3, until=0.01)
    if trial.stopping.decided:  # equal runs
        assert trial.arms[1].difference.low == trial.arms[1].difference.high == 0
    else:
        assert trial.stopping.text == "Ran all 3 seeds: not decided for attn_scale."
    assert trial.stopping.seeds == len(trial.seeds)


def test_an_arm_that_failed_does_not_keep_the_trial_going(monkeypatch):
    arms = [SimpleNamespace(name=n, run_name=lambda seed, n=n: f"{n}, seed {seed}", control=None) for n in "ab"]
    runs = SimpleNamespace(
        arms=arms, compared=arms[1:], with_seeds=lambda seeds: None,
        settings=SimpleNamespace(until=0.3, seeds=5, confidence=0.95),
    )  # fmt: skip
    monkeypatch.setattr(rounds, "differences", lambda runs, planned: [None])
    state = rounds.interim_analysis(runs, 2, {"b, seed 1": "NaN"})
    assert state.decided and "a run failed of b" in state.text


def test_one_seed_cannot_be_sequential(tmp_path):
    with pytest.raises(UnsmoothError, match="until needs at least 2 seeds"):
        small_trial(tmp_path / "t", SPECS[:2], seeds=1, until=0.3)
    assert not (tmp_path / "t").exists()

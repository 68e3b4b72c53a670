"""The detectable difference: against simulated trials, and against closed forms."""

from __future__ import annotations

import json
from math import sqrt

import numpy as np
import pytest
from scipy import stats

from tests.trials.test_compare import HOST, SPECS, small_trial
from unsmooth import UnsmoothError
from unsmooth.cli import main as cli
from unsmooth.trials.compare import power
from unsmooth.trials.power import detectable_difference
from unsmooth.trials.statistics import paired_difference


def share_shown(chance, true, seeds, images, disagreement, seed_sd, trials=200):
    """How often a true difference is shown: runs disagree on random images, and seeds vary by themselves too."""
    shown = 0
    for _ in range(trials):
        effect = true + chance.normal(0, seed_sd, (seeds, 1))
        u = chance.random((seeds, images))
        ours = u < (disagreement + effect) / 2
        base = ~ours & (u < disagreement)
        shown += paired_difference(ours, base).shown
    return shown / trials


@pytest.mark.parametrize(
    ("seeds", "images", "disagreement", "seed_sd"),
    [(1, 2000, 0.2, 0.0), (3, 1000, 0.2, 0.0), (5, 1000, 0.3, 0.0), (5, 1000, 0.2, 0.02), (3, 500, 0.3, 0.05)],
)
def test_simulated_trials_show_it_as_often_as_stated(seeds, images, disagreement, seed_sd):
    sd = sqrt(disagreement / images + seed_sd**2)
    stated = detectable_difference(seeds, images, disagreement, sd)
    measured = share_shown(np.random.default_rng(seeds), stated, seeds, images, disagreement, seed_sd)
    assert measured == pytest.approx(0.8, abs=0.08)  # almost three standard errors of 200 trials


def test_half_of_it_is_shown_far_less_often():
    stated = detectable_difference(5, 1000, 0.2)
    assert share_shown(np.random.default_rng(0), stated / 2, 5, 1000, 0.2, 0.0) < 0.45


def test_one_seed_and_many_images_have_closed_forms():
    usual = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * sqrt(0.2 / 10_000)
    assert detectable_difference(1, 10_000, 0.2) == pytest.approx(usual)
    # With many images only seeds matter: the power of the t test, from the noncentral t distribution.
    seeds, sd = 5, 0.01
    found = detectable_difference(seeds, 10**9, 0.2, sd)
    critical, shift = stats.t.ppf(0.975, seeds - 1), found / (sd / sqrt(seeds))
    t_power = stats.nct.sf(critical, seeds - 1, shift) + stats.nct.cdf(-critical, seeds - 1, shift)
    assert t_power == pytest.approx(0.8, abs=2e-3)


def test_more_of_everything_detects_less():
    base = detectable_difference(3, 1000, 0.2)
    assert detectable_difference(5, 1000, 0.2) < base
    assert detectable_difference(3, 4000, 0.2) == pytest.approx(base / 2, rel=1e-6)
    assert detectable_difference(3, 1000, 0.2, confidence=0.99) > base
    assert detectable_difference(3, 1000, 0.2, power=0.9) > base
    with pytest.raises(UnsmoothError, match="disagreement above 0"):
        detectable_difference(3, 1000, 0)


def test_it_is_stated_before_the_first_run_and_kept(tmp_path):
    stages = []
    trial = small_trial(tmp_path, SPECS[:2], on_stage=stages.append)
    assert stages[0] == trial.power.text and "no runs yet" in trial.power.source
    assert (trial.power.seeds, trial.power.images, trial.power.comparisons) == (2, 40, 1)
    assert trial.power.difference == pytest.approx(detectable_difference(2, 40, 0.25))
    assert trial.power.corrected is None
    again = small_trial(tmp_path, SPECS[:2])
    assert again.power == trial.power  # its own runs do not change what was stated
    # Another design is stated anew, from the runs that there are.
    longer = power(SPECS[:2], "digits", out=tmp_path, seeds=6, epochs=1, train_images=128, val_images=40)
    assert longer.source.startswith("measured on 2 seeds of 1 arm")
    runs = [[np.load(tmp_path / run.folder / "scores.npz")["correct"] for run in arm.runs] for arm in trial.arms]
    differs = np.mean(np.array(runs[0]) != np.array(runs[1]))
    assert longer.disagreement == pytest.approx(max(differs, 0.5 / 40))
    assert longer.accuracy == pytest.approx(np.mean(runs[0]))
    text = " ".join(str(trial).split())
    assert "Detectable difference: 2 seeds and 40 validation images" in text
    assert "since there are no runs yet" in " ".join((tmp_path / "report.html").read_text().split())


def test_two_plain_runs_are_a_pilot(tmp_path):
    small_trial(tmp_path, SPECS[:2])
    fresh = [HOST, HOST + "+feat_scale"]
    stated = power(fresh, "digits", out=tmp_path, seeds=5, epochs=1, train_images=128, val_images=40)
    assert stated.source == "measured on 2 runs of plain with different seeds"


def test_the_command_prints_it_and_trains_nothing(tmp_path, capsys):
    arguments = ["compare", *SPECS, "--data", "digits", "--seeds", "5", "--out", str(tmp_path / "t"), "--power"]
    assert cli.main(arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("5 seeds and 359 validation images show a true difference of")
    assert "after the correction for 2 comparisons" in out and "accuracy 50.0 %" in out
    assert cli.main([*arguments, "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert stated["corrected"] > stated["difference"] > 0
    assert not (tmp_path / "t").exists()

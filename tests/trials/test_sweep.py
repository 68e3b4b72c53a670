"""Sweeps: the same values for every arm, chosen on training images that are held out."""

from __future__ import annotations

import json

import numpy as np
import pytest

import unsmooth
from tests.support.runs import HOST, SMALL
from tests.trials.test_compare import small_trial
from unsmooth import UnsmoothError
from unsmooth.data.splits import hold_out, limit_splits, open_splits
from unsmooth.results.trial import SweepRun, Trial
from unsmooth.trials.sweep import at_edge, choose, read_sweep

SPECS = [HOST, HOST + "+attn_scale"]
VALUES = (1e-6, 2e-3, 8e-3)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "trial"
    return out, small_trial(out, SPECS, seeds=1, sweep={"lr": list(VALUES)})


def run_settings(folder):
    return json.loads((folder / "run.json").read_text())


def test_every_arm_gets_the_same_values_and_keeps_its_best(swept):
    out, trial = swept
    for arm in trial.arms:
        sweep = arm.sweep
        assert sweep.field == "lr" and tuple(run.value for run in sweep.runs) == VALUES
        best = max(sweep.runs, key=lambda run: run.top1)
        assert sweep.chosen == best.value and sweep.edge == (best.value != 2e-3)
        assert arm.recipe == {"lr": sweep.chosen}
        final = run_settings(out / arm.runs[0].folder)
        assert final["recipe"]["lr"] == sweep.chosen and final["images"] == {"train": 128, "val": 40, "classes": 10}
        for run in sweep.runs:
            tried = run_settings(out / run.folder)
            assert (tried["recipe"]["lr"], tried["seed"], tried["spec"]) == (run.value, 0, arm.spec)
            assert {**tried["recipe"], "lr": 0} == {**final["recipe"], "lr": 0}
            assert tried["images"]["train"] + tried["images"]["val"] == 128 and tried["images"]["val"] == sweep.images


def test_the_choice_is_made_on_training_images_that_are_held_out():
    splits = limit_splits(open_splits("digits"), 400, 40)
    held = hold_out(splits, 0.1)
    sources = (splits.train, held.train, held.val, splits.val)
    everything, train, val, test = ({images.item_name(i) for i in range(images.count)} for images in sources)
    assert train | val == everything and not train & val and not val & test
    labels = np.array([splits.train.labels(i) for i in range(400)])
    chosen = np.array([held.val.labels(i) for i in range(held.val.count)])
    for label in range(10):  # stratified
        assert (chosen == label).sum() == round(0.1 * (labels == label).sum())
    again = hold_out(splits, 0.1)
    assert {again.val.item_name(i) for i in range(again.val.count)} == val


def test_a_sweep_run_is_a_run_of_train_with_a_holdout(swept, tmp_path):
    _, trial = swept
    alone = unsmooth.train(
        HOST, "digits", out=tmp_path, options={"holdout": 0.1}, **{**SMALL, "epochs": 1, "lr": VALUES[1]}
    )
    assert alone["top1"] == trial["plain"].sweep.runs[1].top1 and alone.images == trial["plain"].sweep.images
    with pytest.raises(UnsmoothError, match="holdout must be at least 0 and at most"):
        unsmooth.train(HOST, "digits", out=tmp_path / "other", options={"holdout": "1"}, **SMALL)


def test_the_report_shows_the_sweep_and_tuned_arms_are_on_the_same_budget(swept):
    out, trial = swept
    text, html = " ".join(str(trial).split()), (out / "report.html").read_text()
    for shown in (text, html):
        assert "Sweep of lr with seed 0" in shown and "held-out training images" in shown
        assert "same budget: attn_scale" not in shown and "alone has" not in shown
    assert Trial.from_json(out / "trial.json") == trial
    line = next(line for line in trial.verdict.lines if line.startswith("attn_scale"))
    sweep = trial["attn_scale"].sweep
    assert f"lr = {sweep.chosen} chosen from 1e-06, 0.002, 0.008" in line
    assert ("at the edge of the sweep" in line) == sweep.edge


def test_a_finished_sweep_is_not_repeated(swept, monkeypatch):
    out, trial = swept
    monkeypatch.setattr("unsmooth.trials.runner.train", None)
    again = small_trial(out, SPECS, seeds=1, sweep="lr=1e-6,2e-3,8e-3")
    assert [arm.sweep for arm in again.arms] == [arm.sweep for arm in trial.arms]


def test_runs_of_a_sweep_can_be_shorter_than_those_of_the_trial(tmp_path):
    fields = {"seeds": 1, "sweep": "lr=1e-3,2e-3", "sweep_epochs": 1}
    trial = small_trial(tmp_path / "t", SPECS, **fields, epochs=2)
    for arm in trial.arms:
        assert arm.sweep.epochs == 1 and len(arm.runs[0].epochs) == 2
        epochs = [run_settings(tmp_path / "t" / run.folder)["recipe"]["epochs"] for run in arm.sweep.runs]
        assert epochs == [1, 1] and run_settings(tmp_path / "t" / arm.runs[0].folder)["recipe"]["epochs"] == 2
    assert "1 epoch per run" in " ".join(str(trial).split())
    with pytest.raises(UnsmoothError, match="warmup_epochs must be at most epochs, 1"):
        small_trial(tmp_path / "u", SPECS, **fields, epochs=3, warmup_epochs=2)
    with pytest.raises(UnsmoothError, match="sweep_epochs is set to 1, but there is no sweep"):
        small_trial(tmp_path / "u", SPECS, sweep_epochs=1)


def test_choice_and_edge():
    runs = [SweepRun(0.1, 0.5, "", None), SweepRun(0.2, 0.7, "", None), SweepRun(0.3, None, "", "NaN")]
    assert choose(runs) == 0.2 and choose(runs[2:]) is None
    assert choose([SweepRun(v, 0.5, "", None) for v in (3, 1, 2)]) == 3  # the first of equals
    assert at_edge(3, (3, 1, 2)) and at_edge(1, (3, 1, 2)) and not at_edge(2, (3, 1, 2))
    assert not at_edge("adamw", ("adamw", "sgd")) and not at_edge(None, (1, 2))


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("lr", "at least two values"),
        ("lr=1e-3", "at least two values"),
        ("lr=1e-3,0.001", "a value twice"),
        ("lr=1e-3,fast", "lr must be a number"),
        ("lr=1e-3,-1", "lr must be above 0"),
        ("lrr=1,2", "recipe has no option 'lrr'. Closest of \\d+ names: lr"),
        ("epochs=1,2", "part of the budget"),
        ("crop_scale=0.5,1", "cannot be swept|must be"),
    ],
)
def test_mistakes_raise_before_any_work(tmp_path, sweep, message):
    with pytest.raises(UnsmoothError, match=message):
        small_trial(tmp_path / "t", SPECS, sweep=sweep)
    assert not (tmp_path / "t").exists()


def test_values_are_read_as_the_recipe_reads_them():
    assert read_sweep("lr=5e-4, 1e-3").values == (5e-4, 1e-3)
    assert read_sweep("batch-size=32,64").values == (32, 64)
    assert read_sweep("") is None
    with pytest.raises(UnsmoothError, match="by arm_fields and by the sweep"):
        small_trial("nowhere", SPECS, sweep="lr=1e-3,2e-3", arm_fields={SPECS[1]: {"lr": 1e-4}})

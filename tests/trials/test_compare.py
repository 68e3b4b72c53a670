"""Compare: one budget for every arm, paired differences, nothing trained twice, failures reported."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import unsmooth
from benchmarks.trials import pack, unpack
from tests.support.runs import HOST, SMALL, ended, in_child, small_run
from unsmooth import UnsmoothError
from unsmooth.recipes.recipe import load_recipe
from unsmooth.results.trial import Trial
from unsmooth.training.run import Interrupted
from unsmooth.trials.arms import plan_arms
from unsmooth.trials.directory import TrialDirectory
from unsmooth.trials.statistics import paired_difference

SPECS = [HOST, HOST + "+attn_scale", HOST + "+context_broadcast"]
FIELDS = {**SMALL, "epochs": 1}


def small_trial(out, specs=SPECS, **options):
    usual = {"seeds": 2, "out": out, "costs": False, "vitals": "none"}
    return unsmooth.compare(specs, "digits", **{**FIELDS, **usual, **options})


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    out = tmp_path_factory.mktemp("trials") / "trial"
    return out, small_trial(out, vitals="token_cosine", costs=True, robustness=True)


def test_a_trial_has_all_that_it_promises(trial):
    out, actual = trial
    assert actual.keys() == ["plain", "attn_scale", "context_broadcast"]
    assert (actual.data.train, actual.data.val, actual.data.classes) == (128, 40, 10)
    for arm in actual.arms:
        tops = [run.top1 for run in arm.runs]
        assert arm.top1.mean == pytest.approx(np.mean(tops))
        assert arm.top1.sd == pytest.approx(np.std(tops, ddof=1))
        assert arm.parameters > 1000 and arm.flops > arm.parameters
        assert arm.inference.images_per_second > 0 and arm.training.ratio.low > 0
        assert set(arm.robustness) == {"occlusion 0.25", "occlusion 0.5", "fgsm 1"}
        assert arm.diagnosed is not None and len(arm.diagnosed["token_cosine"]) == 2
        assert [len(run.epochs) for run in arm.runs] == [1, 1]
    assert actual.arms[1].parameters - actual.arms[0].parameters == 4
    assert actual.verdict.text in (out / "report.html").read_text().replace("<wbr>", "")
    assert Trial.from_json(out / "trial.json") == actual
    assert json.loads((out / "trial.json").read_text()) == actual.to_dict()
    assert load_recipe(out / "recipe.toml") == load_recipe("small", FIELDS)
    assert "plain" in str(actual) and "difference" in str(actual)
    with pytest.raises(UnsmoothError, match=r"this trial has no arm 'atn_scale'\. Did you mean 'attn_scale'"):
        actual["atn_scale"]


def test_recorded_trials_still_load():
    paths = list(Path("results/trials").glob("*.json"))
    assert paths
    for path in paths:
        assert Trial.from_json(path).to_dict() == json.loads(path.read_text())


def test_differences_are_paired_by_seed_and_image(trial):
    out, actual = trial
    right = {}
    for arm in plan_arms(SPECS):
        runs = []
        for seed in range(2):
            with np.load(TrialDirectory(out).run_path(arm, seed) / "scores.npz") as file:
                runs.append(file["correct"])
        right[arm.name] = np.array(runs)
    names = ("attn_scale", "context_broadcast")
    expected = {name: paired_difference(right[name], right["plain"]) for name in names}
    smaller, larger = sorted(difference.p for difference in expected.values())
    corrected = {smaller: min(1.0, 2 * smaller), larger: max(min(1.0, 2 * smaller), larger)}
    for name, plain in expected.items():
        difference = actual[name].difference
        assert replace(difference, p_holm=None, survives=None) == plain
        assert difference.p_holm == pytest.approx(corrected[plain.p])
        assert difference.survives == (difference.p_holm <= 0.05)


def test_arms_start_alike_and_see_the_same_images(trial, tmp_path):
    """An arm of a trial is what the same run alone gives, and a remedy that never moves gives the plain host's run."""
    _, actual = trial
    alone = small_run(tmp_path, HOST, FIELDS, seed=1)
    assert alone["top1"] == actual["plain"].runs[1].top1
    assert alone["loss"] == actual["plain"].runs[1].loss


def test_an_arm_can_have_recipe_fields_of_its_own_and_the_report_says_so(tmp_path):
    specs = [HOST, HOST + "+attn_scale"]
    trial = small_trial(tmp_path, specs, seeds=1, arm_fields={specs[1]: {"lr": 5e-4}})
    plain, treated = (
        json.loads((tmp_path / arm.runs[0].folder / "run.json").read_text())["recipe"] for arm in trial.arms
    )
    assert {name for name in plain if plain[name] != treated[name]} == {"lr"}
    assert (treated["lr"], trial.arms[0].recipe) == (5e-4, {})
    assert Trial.from_json(tmp_path / "trial.json") == trial
    assert "attn_scale alone has lr = 0.0005" in " ".join(str(trial).split())
    assert "alone has other values" in (tmp_path / "report.html").read_text()
    with pytest.raises(UnsmoothError, match="unknown spec of arm_fields"):
        small_trial(tmp_path / "other", specs, arm_fields={"deit": {"lr": 1.0}})


def test_what_is_done_is_not_done_again(trial, monkeypatch):
    out, actual = trial
    monkeypatch.setattr("unsmooth.trials.runner.train", None)
    again = small_trial(out, specs=SPECS[:2])
    assert again["attn_scale"].runs == actual["attn_scale"].runs


def test_the_archive_of_a_trial_suffices_to_compute_it_again(trial, tmp_path, monkeypatch):
    out, first = trial
    copy, archive = tmp_path / "copy", tmp_path / "trial.zip"
    pack(out, archive)
    unpack(archive, copy)
    assert not list(copy.rglob("*.safetensors"))
    monkeypatch.setattr("unsmooth.trials.runner.train", lambda **arguments: pytest.fail("trained again"))
    again = small_trial(copy, vitals="token_cosine", costs=True)
    assert [arm.difference for arm in again.arms] == [arm.difference for arm in first.arms]
    assert [arm.diagnosis for arm in again.arms] == [arm.diagnosis for arm in first.arms]
    assert [arm.flops for arm in again.arms] == [arm.flops for arm in first.arms]
    pack(out, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == archive.read_bytes()


def test_a_failed_run_is_reported_and_left_out(tmp_path, monkeypatch):
    from unsmooth.training import trainer

    step = trainer.Trainer._step

    def breaks(self, batch):
        if self.seed == 1 and hasattr(self.model.blocks[0].attn, "unsmooth_attn_scale"):
            with torch.no_grad():
                self.model.blocks[1].attn.qkv.weight.fill_(float("inf"))
        step(self, batch)

    monkeypatch.setattr(trainer.Trainer, "_step", breaks)
    actual = small_trial(tmp_path, specs=SPECS[:2])
    arm = actual["attn_scale"]
    assert arm.top1.runs[1] is None and arm.top1.mean == arm.top1.runs[0]
    assert "block 1 broke first" in arm.runs[1].failed
    assert arm.difference.by_seed[1] is None and arm.difference.by_seed[0] is not None
    assert any("1 of 2 runs failed (seed 1)" in line for line in actual.verdict.lines)
    assert "did not finish with every seed" in actual.verdict.text and "better" not in actual.verdict.text
    assert "seed 1" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_runs_side_by_side_are_the_runs_one_by_one(trial, tmp_path):
    _, actual = trial
    reports = []
    side = small_trial(tmp_path, specs=SPECS[:2], jobs=2, on_progress=lambda *report: reports.append(report))
    for name in ("plain", "attn_scale"):
        for one, other in zip(side[name].runs, actual[name].runs, strict=True):
            assert one.top1 == other.top1
            assert one.loss == pytest.approx(other.loss, rel=1e-5)
    assert {name for name, *_ in reports} == {
        f"{arm}, seed {seed}" for arm in ("plain", "attn_scale") for seed in (0, 1)
    }


def test_ctrl_c_keeps_what_was_done(tmp_path):
    def stop(name, done, total, line):
        if name == "attn_scale, seed 0" and done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def work():
        with pytest.raises(Interrupted):
            small_trial(tmp_path, specs=SPECS[:2], on_progress=stop)

    assert ended(in_child(work)) == 0
    assert len(list(tmp_path.rglob("result.json"))) == 1
    assert len(list(tmp_path.rglob("state.safetensors"))) == 2
    assert small_trial(tmp_path, specs=SPECS[:2])["attn_scale"].top1.runs.count(None) == 0


def test_names_are_as_short_as_they_can_be():
    def names(*specs):
        return [arm.name for arm in plan_arms(specs)]

    assert names(HOST, HOST + "+attn_scale+feat_scale") == ["plain", "attn_scale+feat_scale"]
    assert names(HOST, HOST + "+no_skip", HOST + "+no_skip(branch=mlp)") == ["plain", "no_skip", "no_skip(branch=mlp)"]
    assert names("a(depth=2)", "b+attn_scale") == ["a", "b+attn_scale"]
    assert names("a(depth=2)", "a(depth=3)") == ["a(depth=2)", "a(depth=3)"]
    slugs = {arm.slug for arm in plan_arms(["a(depth=2)", "a(depth=3)", "a(depth=2)+attn_scale"])}
    assert len(slugs) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"specs": [HOST]}, "compares at least two specs"),
        ({"specs": [HOST, HOST]}, "is given twice"),
        ({"specs": [HOST, "attn_scal"]}, "timm has no model 'attn_scal'"),
        ({"specs": [HOST, HOST + "+atn_scale"]}, "Did you mean 'attn_scale'"),
        ({"seeds": 0}, "at least 1"),
        ({"jobs": 0}, "at least 1"),
        ({"confidence": 1.0}, "confidence must be"),
        ({"epoch": 3}, "compare has no setting or recipe field 'epoch'"),
        ({"vitals": "bogus"}, "unknown vital"),
        ({"train_images": 16}, "fewer than one batch of 32"),
    ],
)
def test_mistakes_raise_before_any_work(tmp_path, options, message):
    with pytest.raises(UnsmoothError, match=message):
        small_trial(tmp_path / "trial", **options)
    assert not (tmp_path / "trial").exists()


def test_another_recipe_in_the_same_folder_is_refused(trial):
    out, _ = trial
    before = json.loads((out / "trial.json").read_text())
    with pytest.raises(UnsmoothError, match=r"holds another run \(lr was 0.002 and is 0.1"):
        small_trial(out, lr=0.1)
    assert json.loads((out / "trial.json").read_text()) == before

"""Arguments of `train`, and runs without optional packages."""

from __future__ import annotations

import sys
import types

import pytest

from tests.support.runs import HOST, SMALL, small_run
from unsmooth import UnsmoothError, train
from unsmooth.recipes.recipe import load_recipe
from unsmooth.training.run_dir import RunDir
from unsmooth.training.settings import TrainSettings

HEAVY = ("sklearn", "tensorboardX", "rich", "typer", "plotly", "matplotlib", "transformers", "scipy", "fcntl")


def test_fields_go_to_the_settings_and_to_the_recipe(tmp_path):
    settings = TrainSettings(out=tmp_path / "unused", seed=3)
    train(HOST, "digits", recipe=load_recipe("small", {**SMALL, "epochs": 9}), settings=settings, out=tmp_path / "run",
          epochs=1)  # fmt: skip
    record = RunDir(tmp_path / "run").settings()
    assert (record.seed, record.recipe["epochs"], record.recipe["lr"]) == (3, 1, SMALL["lr"])
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epoch": 1}, r"train has no setting or recipe field 'epoch'\..*\bepochs\b"),
        ({"overrides": {}}, "train has no setting or recipe field 'overrides'"),
        ({"workers": -1}, r"train: workers must be at least 0 \(got -1\)"),
        ({"seed": 2**62}, "train: seed must be at least 0 and at most"),
        ({"seed": True}, "train: seed must be a whole number"),
        ({"lr": "fast"}, "recipe: lr must be a number"),
    ],
)
def test_invalid_fields_are_reported(tmp_path, fields, message):
    with pytest.raises(UnsmoothError, match=message):
        train(HOST, "digits", out=tmp_path / "run", **fields)
    assert not (tmp_path / "run").exists()


def test_a_run_without_fcntl_locks_by_msvcrt(tmp_path, monkeypatch):
    locked = []
    windows = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *arguments: locked.append(arguments[1:]))
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    small_run(tmp_path / "run", fields={"epochs": 1})
    assert locked == [(2, 1)]

    def busy(*arguments):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(windows, "locking", busy)
    with pytest.raises(UnsmoothError, match="another process is training in"):
        RunDir(tmp_path / "other").acquire({})
    monkeypatch.setitem(sys.modules, "msvcrt", None)  # neither module: no lock, but a run
    small_run(tmp_path / "unlocked", fields={"epochs": 1})
    assert RunDir(tmp_path / "unlocked").done


def test_a_run_without_tensorboard_warns_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.warns(UserWarning, match=r"pip install 'unsmooth\[tensorboard\]'") as caught:
        small_run(tmp_path)
    assert len([warning for warning in caught if "tensorboard" in str(warning.message)]) == 1
    run = RunDir(tmp_path)
    assert run.done and len(run.metrics()) == SMALL["epochs"] and not run.tensorboard.exists()

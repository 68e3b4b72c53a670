"""train, evaluate and compare on the command line: their output, and errors of one line before any work."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from PIL import Image

from tests.support.runs import HOST
from unsmooth.cli import main as cli

FAST = ["--epochs", "1", "--batch-size=32", "--train-images", "128", "--val-images", "40", "--vitals-every", "0"]


def mistake(capsys, *arguments):
    """The error of a command line: exit code 2, one line on standard error, nothing on standard output."""
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    notes = [line for line in err.splitlines() if not line.startswith("note:")]
    assert out == "" and len(notes) == 1, err
    assert notes[0].startswith("unsmooth: ")
    return notes[0]


def write_images(folder, classes, side=8, each=3):
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(each):
            Image.fromarray(np.full((side, side), 40 * i, np.uint8)).save(folder / name / f"{i}.png")


def test_train_resume_and_evaluate(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", HOST + "+attn_scale", "--data", "digits", "--out", "run", *FAST]) == 0
    out, err = capsys.readouterr()
    assert "top-1" in out and "on 40 images" in out
    assert err.count("epoch 1, loss") == 1  # one line per epoch without a terminal
    assert cli.main(["train", HOST + "+attn_scale", "--data", "digits", "--out", "run", *FAST]) == 0
    assert capsys.readouterr().out == out
    assert cli.main(["evaluate", "run/last", "--data", "digits", "--occlusion", "0.25", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["test"] for row in rows] == ["validation", "occlusion 0.25"]
    assert cli.main(["evaluate", HOST.replace("depth=2", "depth=2, num_classes=10") + "+attn_scale", "--checkpoint",
                     "run/last/model.safetensors", "--data", "digits"]) == 0  # fmt: skip
    assert "validation" in capsys.readouterr().out


def test_compare_prints_a_table_and_writes_a_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["compare", HOST, HOST + "+feat_scale", "--data", "digits", "--seeds", "1", "--out",
                 str(tmp_path / "t"), "--vitals", "none", "--no-costs", *FAST]  # fmt: skip
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert "no difference shown" in out or "points" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "report.html" in err
    assert (tmp_path / "t" / "report.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "t" / "trial.json").read_text())["made"]["command"].startswith("unsmooth compare")


def test_recipes_are_listed(capsys):
    assert cli.main(["list", "recipes"]) == 0
    out = capsys.readouterr().out
    assert "batch_size" in out and "deit 1024" in out and "small 64" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "digits", "--epoch", "3"], "Closest of \\d+ names: --epochs"),
        (["--data", "digits", "--lr", "fast"], "lr must be a number .got 'fast'."),
        (["--data", "digits", "--recipe", "big"], "unknown recipe 'big'"),
        (["--data", "nowhere"], "no images at 'nowhere'"),
        (["--data", "digits", "--device", "gpu"], "unknown device 'gpu'"),
        (["--data", "digits", "--checkpoint", "none.pth"], "none.pth does not exist"),
        (["--data", "digits", "--batch-size", "4096"], "1438 training images, fewer than one batch of 4096"),
        ([], "Missing option '--data'"),
        (["--data", "digits", "--workers", "-1"], "workers must be at least 0"),
        (["--data", "digits", "--auto-augment", "foo"], "timm cannot build the augmentation 'foo'"),
        (["--data", "digits", "--image-size", "9"], "does not accept images of 9 × 9 pixels"),
        (["--data", "digits", "--device", "meta"], "training on 'meta' is not supported"),
        (["--data", "digits", "--device", "cuda:99"], "device 'cuda:99' does not exist"),
        (["--data", "digits", "--optimizer", "adamwow"], "timm cannot build the optimizer 'adamwow'"),
    ],
)
def test_mistakes_in_options(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert re.search(message, mistake(capsys, "train", HOST, *arguments))
    assert not list(tmp_path.iterdir())


def test_mistakes_in_data(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    many = {name: np.zeros((40, 8, 8), np.uint8) for name in ("x_train", "x_test")}
    labels = np.arange(40) % 4
    np.savez("no_split.npz", images=many["x_train"], labels=labels)
    np.savez("one_class.npz", **many, y_train=np.zeros(40, int), y_test=np.zeros(40, int))
    np.savez("beyond.npz", **many, y_train=labels, y_test=labels + 1)
    np.savez("good.npz", **many, y_train=labels, y_test=labels)
    write_images(tmp_path / "no_val" / "train", "ab")
    write_images(tmp_path / "differ" / "train", "ab")
    write_images(tmp_path / "differ" / "val", "ac")
    for split in ("train", "val"):
        for name in "ab":
            (tmp_path / "broken" / split / name).mkdir(parents=True)
            (tmp_path / "broken" / split / name / "x.png").write_bytes(b"no picture")
    before = sorted(tmp_path.rglob("*"))
    few = ["--batch-size", "2"]
    for data, message in {
        "no_split.npz": "split", "one_class.npz": "a single class", "beyond.npz": "label 4", "no_val": "no split val",
        "differ": "only one has b, c", "broken": "all",
    }.items():  # fmt: skip
        assert message in mistake(capsys, "train", HOST, "--data", data, *few), data
    assert "more than the 3 of" in mistake(
        capsys, "train", HOST.replace("depth", "num_classes=3, depth"), "--data", "good.npz", *few
    )
    assert "fewer than one patch" in mistake(
        capsys, "train", "vit_tiny_patch16_224(depth=1)", "--data", "good.npz", *few
    )
    assert sorted(tmp_path.rglob("*")) == before

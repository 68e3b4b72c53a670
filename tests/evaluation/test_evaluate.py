"""Evaluate from end to end: one table, one JSON, and mistakes in one line before any work."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image

import unsmooth
from tests.support.small_hosts import look_trained
from unsmooth.cli.evaluate import evaluate as command
from unsmooth.data.splits import open_splits
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation import cost
from unsmooth.evaluation.evaluate import evaluate
from unsmooth.results.evaluation import Evaluation

SPEC = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2, num_classes=10)"
TREATED = f"{SPEC}+attn_scale"
FAST: dict[str, Any] = {"limit": 12}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    unsmooth.save(look_trained(unsmooth.create_model(TREATED)), folder)
    return folder


def run(*arguments: str) -> None:
    app = typer.Typer()
    app.command()(command)
    app(args=list(arguments), standalone_mode=False)


def test_a_model_on_digits_is_scored_as_by_hand(saved: Path) -> None:
    evaluation = evaluate(saved, "digits", occlusion=[0.25], fgsm=[1, 16], batch_size=100)
    assert evaluation.keys() == ["validation", "occlusion 0.25", "fgsm 1", "fgsm 16"]
    images = open_splits("digits").val
    assert images.labels is not None
    pixels = np.stack([np.asarray(images.load(i)) for i in range(images.count)]) / 255.0
    labels = np.array([images.labels(i) for i in range(images.count)])
    hidden = pixels.copy()
    hidden[:, 2:6, 2:6] = 0.5  # the mean pixel of this host's normalisation; a quarter of 8 × 8 is 4 × 4
    model = unsmooth.load(saved).eval()
    for test, x in (("validation", pixels), ("occlusion 0.25", hidden)):
        with torch.no_grad():
            logits = model(torch.tensor((x - 0.5) / 0.5, dtype=torch.float32)[:, None]).numpy()
        np.testing.assert_array_equal(evaluation.scores[test].predicted, logits.argmax(1))
        assert evaluation[test].top1 == (logits.argmax(1) == labels).mean()
        best = np.argsort(-logits, 1)[:, :5]
        assert evaluation[test].top5 == (best == labels[:, None]).any(1).mean()
    assert evaluation["validation"].images == images.count < 400
    losses = [evaluation[test].loss for test in ("validation", "fgsm 1", "fgsm 16")]
    assert losses == sorted(losses) and losses[0] < losses[1]


def test_json_goes_there_and_back(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "throughput", partial(cost.throughput, rounds=2, seconds=0.001))
    done: list[tuple[int, int | None]] = []
    evaluation = evaluate(
        saved, "digits", throughput=True, progress=lambda *x: done.append(x), command="unsmooth x", **FAST
    )
    evaluation.to_json(tmp_path / "a" / "x.json")
    again = Evaluation.from_json(tmp_path / "a" / "x.json")
    assert again.to_dict() == evaluation.to_dict() == json.loads(evaluation.to_json())
    assert again.to_dict()["kind"] == "evaluation" and again.to_dict()["format"] == 1
    assert again.model.remedies == ["attn_scale"] and again.provenance.command == "unsmooth x"
    assert again.cost.throughput.images_per_second > 0 and again.cost.flops > 0
    assert done[-1] == (12, 12)
    assert "validation" in str(again) and "images/s" in str(again) and "attn_scale" in str(again)
    assert "validation" in repr(again)
    with pytest.raises(UnsmoothError, match="has no test"):
        again["validatoin"]
    for content, reason in (
        ("{", "cannot read"),
        ("{}", "is not a evaluation"),
        ('{"kind": "evaluation", "format": 9}', "format 9"),
    ):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(UnsmoothError, match=reason):
            Evaluation.from_json(tmp_path / "x.json")


def test_weights_that_are_not_finite_still_give_a_table() -> None:
    model = unsmooth.create_model(SPEC)
    model.head.bias.data.fill_(float("nan"))  # type: ignore[union-attr]
    evaluation = evaluate(model, "digits", **FAST)
    assert evaluation["validation"].top1 == 0 and evaluation["validation"].loss is None
    assert "12 predictions were NaN or Inf" in str(evaluation)
    json.loads(evaluation.to_json())


def test_a_model_with_more_classes_than_the_data_gets_a_warning() -> None:
    spec = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, depth=1, num_classes={})"
    evaluation = evaluate(spec.format(1000), "digits", **FAST)
    assert evaluation.warnings[0].startswith("validation: the data has 10 classes and the model 1,000")
    assert "num_classes=10" in " ".join(str(evaluation).split())
    assert Evaluation.from_dict(evaluation.to_dict()).warnings == evaluation.warnings
    assert evaluate(spec.format(10), "digits", **FAST).warnings == []


def test_broken_images_are_skipped_by_name_or_stop_it(tmp_path: Path) -> None:
    for i in range(10):
        (tmp_path / str(i)).mkdir()
        Image.fromarray(np.full((8, 8), 20 * i, np.uint8)).save(tmp_path / str(i) / "a.png")
    (tmp_path / "3" / "b.png").write_bytes(b"no picture")
    (tmp_path / "4" / "b.png").touch()
    model = unsmooth.create_model(SPEC)
    evaluation = evaluate(model, tmp_path)
    assert evaluation["validation"].images == 10 and evaluation["validation"].skipped == 2
    assert evaluation.skipped["validation"] == {
        "3/b.png": "not an image that Pillow can read", "4/b.png": "the file is empty"
    }  # fmt: skip
    assert "skipped 4/b.png: the file is empty" in str(evaluation)
    with pytest.raises(UnsmoothError, match=r"3/b\.png .* is broken"):
        evaluate(model, tmp_path, strict=True)
    with pytest.raises(UnsmoothError, match=r"3/b\.png .* is broken"):
        evaluate(model, tmp_path, strict=True, workers=1)
    for file in tmp_path.rglob("a.png"):
        file.write_bytes(b"")
    with pytest.raises(UnsmoothError, match="all 12 are broken"):
        evaluate(model, tmp_path)


def test_workers_and_batch_sizes_change_nothing(saved: Path) -> None:
    one = evaluate(saved, "digits", batch_size=5, **FAST)
    two = evaluate(saved, "digits", batch_size=7, workers=2, **FAST)
    np.testing.assert_array_equal(one.scores["validation"].ranked, two.scores["validation"].ranked)
    assert one["validation"].loss == pytest.approx(two["validation"].loss, rel=1e-5)


def test_the_model_is_as_before() -> None:
    model = unsmooth.create_model(SPEC).train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    evaluate(model, "digits", fgsm=[1], amp="bfloat16", **FAST)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "nothing to evaluate on"),
        ({"occlusion": [0.5]}, "need validation images"),
        ({"data": "digits", "occlusion": [1.5]}, "share of the area"),
        ({"data": "digits", "occlusion": [0.0001]}, "less than a pixel"),
        ({"data": "digits", "fgsm": [-1]}, "step must be in pixels"),
        ({"data": "digits", "amp": "fp8"}, r"evaluate: amp must be one of .*\(got 'fp8'\)"),
        ({"data": "digits", "batch_size": 0}, r"batch_size must be at least 1 \(got 0\)"),
        ({"data": "digits", "limit": 0}, "limit must be at least 1"),
        ({"data": "digits", "limits": 3}, "evaluate has no option 'limits'. Did you mean 'limit'"),
        ({"data": "digits", "workers": -1}, "workers must be at least 0"),
        ({"data": "digits", "device": "gpu9"}, "device 'gpu9' cannot be used"),
        ({"data": "missing/"}, "there are no images at 'missing/'"),
        ({"data": "digits", "corrupted": "missing/"}, "there is no folder missing"),
        ({"data": "digits", "checkpoint": "missing.pth"}, "missing.pth does not exist"),
        ({"data": "digits", "real": "tests/"}, "ReaL needs a model with ImageNet's 1000 classes"),
    ],
)
def test_mistakes_are_one_line_before_any_work(
    options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr("unsmooth.evaluation.evaluate.score_each", work)
    with pytest.raises(UnsmoothError, match=reason) as caught:
        evaluate(SPEC, **options)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_another_spec_names_what_differs(saved: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"not in the file \(blocks\.0\.attn\.unsmooth_attn_scale|holds .* not "):
        evaluate(f"{SPEC}+feat_scale", "digits", checkpoint=saved)
    with pytest.raises(UnsmoothError, match=r"of another size \(.*head\.bias"):
        evaluate(SPEC.replace("num_classes=10", "num_classes=7"), "digits", checkpoint=saved / "model.safetensors")


# The command line


def test_the_command_prints_a_table_and_writes_json(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(
        str(saved),
        "--data",
        "digits",
        "--occlusion",
        "0.25,0.5",
        "--fgsm",
        "2",
        "--limit",
        "12",
        "--out",
        str(tmp_path),
    )
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 80 and "…" not in out
    starts = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert [starts.count(word) for word in ("validation", "occlusion", "fgsm")] == [1, 2, 1]
    (written,) = tmp_path.glob("evaluation-*.json")
    assert f"wrote {written}" in err.replace("\n", "")
    assert Evaluation.from_json(written).keys() == ["validation", "occlusion 0.25", "occlusion 0.5", "fgsm 2"]


def test_the_command_loads_a_checkpoint_and_prints_json(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, file = saved / "model.safetensors", tmp_path / "x.json"
    run(TREATED, "--checkpoint", str(weights), "--data", "digits", "--limit", "12", "--json", "--out", str(file))
    printed = json.loads(capsys.readouterr().out)
    assert printed == Evaluation.from_json(file).to_dict()
    same = evaluate(saved, "digits", **FAST)
    assert printed["rows"] == same.to_dict()["rows"]


@pytest.mark.parametrize(("option", "text"), [("--occlusion", "half"), ("--fgsm", "1;2")])
def test_the_command_refuses_words_for_numbers(option: str, text: str) -> None:
    with pytest.raises(UnsmoothError, match=f"{option[2:]} must be numbers, separated by commas"):
        run(SPEC, "--data", "digits", option, text)


def test_the_command_refuses_a_file_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(UnsmoothError, match=r"is a file\. Use a directory as --out"):
        run(SPEC, "--data", "digits", "--out", str(tmp_path / "x"))

"""Models beside each other: what a bench says, and that it leaves models alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import nn

import unsmooth
from tests.support.small_hosts import HOSTS, host, treat
from unsmooth.cli.bench import bench as command
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation import cost
from unsmooth.evaluation.bench import bench
from unsmooth.evaluation.energy import energy
from unsmooth.evaluation.operations import count_operations
from unsmooth.report.bench_table import labels
from unsmooth.results.bench import Bench, Quartiles, Throughput
from unsmooth.utils.text import format_energy

DEIT = HOSTS["deit"]


def made_up(models: Mapping[str, nn.Module], batch_size: int, rounds: int, training: bool, amp: str,
            **options: Any) -> dict[str, Throughput]:  # fmt: skip
    """Invented speeds: 1,000 images per second plus the batch size, and a tenth of it in training."""
    for turn in range(rounds):
        options["progress"](turn + 1)
    speed = (100.0 if training else 1000.0) + batch_size
    ratio = Quartiles(0.9, 1.0, 1.1)
    return {name: Throughput(speed, (speed - 1, speed + 1), ratio, rounds) for name in models}


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "throughput", made_up)


def test_rows_have_all_costs_and_ratios_to_the_first(no_clock: None) -> None:
    steps: list[tuple[int, int | None]] = []
    costs = bench(
        [DEIT, f"{DEIT}+adder"], training=True, rounds=3, batch_size=2, progress=lambda *step: steps.append(step)
    )
    models = [unsmooth.create_model(name) for name in (DEIT, f"{DEIT}+adder")]
    assert costs.keys() == [DEIT, f"{DEIT}+adder"]
    for model, row in zip(models, costs.rows, strict=True):
        operations = count_operations(model)
        assert row.parameters == cost.parameters(model) and row.flops == cost.flops(model)
        assert row.operations == operations and row.size == (3, 32, 32)
        for precision, value in row.energy.items():
            assert value.millijoules == energy(operations, precision)
            assert value.ratio == energy(operations, precision) / energy(count_operations(models[0]), precision)
        assert row.inference.images_per_second == 1002 and row.training.images_per_second == 102
    assert steps == [(i, 8) for i in range(1, 9)]  # two counts, two times three rounds
    assert costs[f"{DEIT}+adder"].remedies == ["adder"]
    with pytest.raises(UnsmoothError, match="this bench has no model"):
        costs["deit"]


def test_models_are_measured_and_left_as_they_were() -> None:
    plain, treated = host("deit").train(), treat(host("deit"), "attn_scale")
    states = [{name: value.clone() for name, value in model.state_dict().items()} for model in (plain, treated)]
    costs = bench([plain, treated, host("deit")], rounds=1, batch_size=1, training=True)
    assert plain.training and not treated.training
    for model, state in zip((plain, treated), states, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
    assert costs.keys() == [DEIT, f"{DEIT}+attn_scale", f"{DEIT} #2"]
    assert all(speed.images_per_second > 0 for row in costs.rows for speed in (row.inference, row.training))
    assert costs.rows[0].inference.ratio.median == 1.0


def test_a_bench_goes_to_json_and_back(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"Leave out throughput=False \(--no-throughput\)"):
        bench(DEIT, throughput=False, training=True)
    costs = bench(DEIT, throughput=False)
    assert costs.rows[0].inference is None and costs.rows[0].training is None
    costs.to_json(tmp_path / "bench.json")
    again = Bench.from_json(tmp_path / "bench.json")
    assert again == costs and again.to_dict() == costs.to_dict() and str(again) == str(costs)
    spent = format_energy(costs[DEIT].energy["fp32"].millijoules)
    assert repr(costs) == f"Bench({DEIT} {spent})" and spent in str(costs) and "images/s" not in str(costs)


def test_tables_fit_80_columns_and_say_what_was_assumed(no_clock: None) -> None:
    costs = bench(
        [DEIT, f"{DEIT}+adder", f"{DEIT}+attn_scale+feat_scale", HOSTS["hf_vit"]], precision="int8", training=True
    )
    text = str(costs)
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "memory traffic",
        "softmax",
        "ISSCC 2014",
        "int8",
        "+adder",
        "32 × 32 pixels",
        "7 interleaved rounds",
    ):
        assert words in " ".join(text.split())
    times = 1 / costs[f"{DEIT}+adder"].energy["int8"].ratio
    assert f"{times:.2f} ×" in text and 2 < times < 4


def test_labels_name_the_remedies_alone_on_the_first_host() -> None:
    names = ["a(depth=2)", "a(depth=2)+adder", "a(depth=24)+adder", "b+adder", "VisionTransformer", "a(depth=2)+no #2"]
    assert labels(names) == ["a(depth=2)", "+adder", "a(depth=24)+adder", "b+adder", "VisionTransformer", "+no #2"]
    assert labels(["VisionTransformer", "VisionTransformer #2"]) == ["VisionTransformer", "VisionTransformer #2"]


@pytest.mark.parametrize(
    ("models", "options", "words"),
    [
        ([], {}, "no models to measure"),
        ([DEIT], {"precision": "fp8"}, "bench: precision must be one of"),
        ([DEIT], {"amp": "half"}, r"bench: amp must be one of .*\(got 'half'\)"),
        ([DEIT], {"round": 1}, "bench has no option 'round'. Did you mean 'rounds'"),
        ([DEIT], {"rounds": 0}, "rounds must be at least 1"),
        ([DEIT], {"batch_size": 0}, "batch_size must be at least 1"),
        ([DEIT, DEIT], {}, "given twice"),
        (
            [DEIT],
            {"image_size": 40, "throughput": False},
            r"does not accept images of 40 × 40 pixels.*HOST\(img_size=40\)",
        ),
        ([DEIT], {"device": "gpu"}, "device 'gpu' cannot be used"),
        (["deit_tiny_patch16_224(num_classes=0, depth=1)"], {}, "no classification head"),
        ([f"{DEIT}+nothing"], {}, "unknown remedy"),
    ],
)
def test_mistakes_are_told_before_anything_is_timed(
    models: list[str], options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "throughput", lambda *args, **kwargs: pytest.fail("timed"))
    with pytest.raises(UnsmoothError, match=words):
        bench(models, **options)


def test_images_of_another_size(no_clock: None) -> None:
    small, large = (bench(host("convmixer"), image_size=side).rows[0] for side in (56, 112))
    assert large.size == (3, 112, 112) and 3.5 < large.flops / small.flops < 4.1


def test_the_command(no_clock: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    app.command()(command)
    arguments = [DEIT, f"{DEIT}+adder", "--precision", "fp16", "--batch-size", "4", "--rounds", "2", "--training"]
    app([*arguments, "--json", "--out", str(tmp_path / "b.json")], standalone_mode=False)
    data = json.loads(capsys.readouterr().out)
    assert data["settings"]["batch_size"] == 4 and data["precision"] == "fp16" and data["kind"] == "bench"
    assert Bench.from_json(tmp_path / "b.json").to_dict() == data
    app([DEIT, "--no-throughput"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "fp32" in printed and "images/s" not in printed
    with pytest.raises(UnsmoothError, match=r"takes a \.json file"):
        app([DEIT, "--out", str(tmp_path)], standalone_mode=False)

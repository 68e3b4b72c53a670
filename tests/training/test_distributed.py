"""Two processes train as one does with the same global batch."""

from __future__ import annotations

import json
import os
import socket

import pytest
import torch
from safetensors.torch import load_file

from tests.support import runs
from tests.support.runs import HOST, SMALL, small_run, torchrun
from unsmooth import UnsmoothError
from unsmooth.training.run_dir import RunDir
from unsmooth.utils.processes import init_processes

MIXED = {**SMALL, "mixup": 0.8, "cutmix": 1.0, "erasing": 0.5, "repeated_augmentation": 3, "ema": 0.9, "accumulate": 2}


def together(out, world, spec=HOST, fields=None, prepare=lambda: None):
    """A run by several processes. `prepare` is called in each of them."""

    def work(rank):
        prepare()
        small_run(out, spec, fields)

    return runs.together(world, work)


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def alike(one, other):
    for a, b in zip(lines(one), lines(other), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-5)
        assert a["val_loss"] == pytest.approx(b["val_loss"], rel=1e-4)
        assert a["lr"] == b["lr"]
    a, b = (load_file(run / "last" / "model.safetensors") for run in (one, other))
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=2e-4, rtol=2e-3)


@pytest.mark.parametrize("spec", [HOST + "+attn_scale+feat_scale", HOST + "+diverse_patch(cosine=0.5)"])
def test_two_processes_give_the_losses_of_one(tmp_path, spec):
    small_run(tmp_path / "one", spec, MIXED)
    assert together(tmp_path / "two", 2, spec, MIXED) == [0, 0]
    alike(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_torchrun_gives_the_losses_of_one(tmp_path):
    fields = [f"--{name.replace('_', '-')}={value}" for name, value in MIXED.items()]
    small_run(tmp_path / "one", HOST, MIXED)
    torchrun(tmp_path / "logs", "train", HOST, "--data", "digits", "--out", str(tmp_path / "two"), *fields)
    alike(tmp_path / "one", tmp_path / "two")


def test_shares_must_be_equal(tmp_path):
    assert together(tmp_path, 2, fields={"batch_size": 33}) == [1, 1]
    assert not any(tmp_path.iterdir())


DINO = (
    "hf:dinov2(image_size=8, patch_size=2, num_channels=1, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)"
)


@pytest.mark.parametrize("spec", [DINO, HOST + "+adder"])
def test_parameters_that_the_loss_leaves_out_are_no_trouble(tmp_path, spec):
    assert together(tmp_path, 2, spec, {"epochs": 1}) == [0, 0]


def test_one_that_cannot_write_stops_all(tmp_path):
    (tmp_path / "file").write_text("")
    assert together(tmp_path / "file" / "run", 2) == [1, 1]


def test_processes_must_share_the_folder(tmp_path):
    def the_second_sees_another_folder():
        RunDir.done = property(lambda self: os.environ.get("RANK") == "1")

    assert together(tmp_path, 2, prepare=the_second_sees_another_folder) == [1, 1]


def test_a_port_in_use_is_one_line(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for name, value in {
            "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(taken.getsockname()[1]),
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        with pytest.raises(
            UnsmoothError, match=r"cannot join the process group: .*If the port is in use, use torchrun --standalone"
        ):
            init_processes("cpu")


def test_devices_that_are_not_there_are_named():
    with pytest.raises(UnsmoothError, match="unknown device 'gpu'"):
        init_processes("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(UnsmoothError, match="device 'cuda' does not exist"):
            init_processes("cuda")

"""Files of a run or a trial that are missing, damaged or of other data: repaired, or said in one line."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unsmooth
from unsmooth.errors import UnsmoothError
from unsmooth.results.training import TrainingResult
from unsmooth.results.trial import Trial
from unsmooth.training.checkpoint import read_state

HOST = "vit_tiny_patch16_224(img_size=8, patch_size=4, in_chans=1, embed_dim=12, num_heads=3, depth=1)"
SHORT: dict[str, Any] = {"epochs": 2, "warmup_epochs": 0, "train_images": 64, "val_images": 32, "batch_size": 32}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    unsmooth.train(HOST, "digits", out=out, **SHORT)
    return out


@pytest.fixture
def unfinished(finished: Path, tmp_path: Path) -> Path:
    """The run as a kill after its last checkpoint leaves it."""
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    return tmp_path / "run"


def resume(out: Path, data: Any = "digits") -> TrainingResult:
    return unsmooth.train(HOST, data, out=out, **SHORT)


def test_a_missing_checkpoint_deletes_nothing(unfinished: Path) -> None:
    (unfinished / "state.safetensors").unlink()
    with pytest.raises(UnsmoothError, match=r"state.safetensors is missing, and 2 epochs were trained. Restore it"):
        resume(unfinished)
    assert (unfinished / "best/model.safetensors").exists()
    assert len((unfinished / "metrics.jsonl").read_text().splitlines()) == 2


def test_every_flipped_bit_of_a_checkpoint_is_found(unfinished: Path) -> None:
    path = unfinished / "state.safetensors"
    whole = path.read_bytes()
    assert read_state(path)
    positions = np.random.default_rng(0).integers(0, len(whole), 200)
    for position in (8, len(whole) - 1, *map(int, positions)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with pytest.raises(UnsmoothError):
            read_state(path)
    for length in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UnsmoothError):
            read_state(path)


def test_a_damaged_checkpoint_is_one_line(unfinished: Path) -> None:
    path = unfinished / "state.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 16
    path.write_bytes(damaged)
    with pytest.raises(UnsmoothError, match=r"is damaged: its checksum differs. Restore it"):
        resume(unfinished)


def test_other_thread_counts_are_said(unfinished: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        with pytest.warns(UserWarning, match=f"was started with threads={before} and is resumed with {before + 1}"):
            resume(unfinished)
    finally:
        torch.set_num_threads(before)


def test_the_same_settings_say_nothing(unfinished: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        resume(unfinished)


def test_replaced_data_of_the_same_size_is_another_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(100) % 4
    data = tmp_path / "data.npz"

    def write() -> None:
        pixels = rng.integers(0, 255, (2, 100, 8, 8), dtype=np.uint8)
        np.savez(data, x_train=pixels[0], y_train=labels, x_test=pixels[1], y_test=labels)

    write()
    resume(tmp_path / "run", data)
    (tmp_path / "run/result.json").unlink()
    write()
    with pytest.raises(UnsmoothError, match=r"holds another run .fingerprint was"):
        resume(tmp_path / "run", data)


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"[1, 2]\n", b'{"loss": 1}\n', b'{"epoch": "x"}\n', b"[" * 100_000])
def test_damaged_metrics_are_left_out(unfinished: Path, line: bytes) -> None:
    path = unfinished / "metrics.jsonl"
    path.write_bytes(line + b"\n" + path.read_bytes())
    assert resume(unfinished).epochs == 2
    assert len(path.read_text().splitlines()) == 2


ARMS = [HOST, HOST + "+attn_scale"]
TRIAL: dict[str, Any] = {"seeds": 2, "costs": False, "vitals": "none", **SHORT, "epochs": 1}


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trial]:
    out = tmp_path_factory.mktemp("trials") / "trial"
    return out, unsmooth.compare(ARMS, "digits", out=out, **TRIAL)


@pytest.mark.parametrize("damage", ["missing", "truncated", "other"])
def test_compare_repeats_a_validation_whose_scores_are_lost(
    trial: tuple[Path, Trial], tmp_path: Path, damage: str
) -> None:
    finished, first = trial
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    scores = next(tmp_path.glob("runs/*attn_scale*/seed1/scores.npz"))
    whole = scores.read_bytes()
    if damage == "missing":
        scores.unlink()
    else:
        scores.write_bytes(whole[:100] if damage == "truncated" else b"mine")
    stages: list[str] = []
    second = unsmooth.compare(ARMS, "digits", out=tmp_path, on_stage=stages.append, **TRIAL)
    assert any("validating attn_scale" in stage and "scores.npz" in stage for stage in stages)
    assert second["attn_scale"].difference == first["attn_scale"].difference
    with np.load(scores) as file:
        assert len(file["correct"]) == SHORT["val_images"]

"""Kills at every file-system event of a run, of `compare` and of `save`: the same command completes what was begun.

`make test` takes a few events of each, `make faults` all of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import unsmooth
from tests.support.file_events import kill_at, kills
from tests.support.runs import ended, in_child, same_state, small_run, trainer_state
from unsmooth.errors import UnsmoothError

HOST = "vit_tiny_patch16_224(img_size=8, patch_size=4, in_chans=1, embed_dim=12, num_heads=3, depth=1)"
SHORT = {"epochs": 2, "warmup_epochs": 0, "train_images": 64, "val_images": 32, "batch_size": 32, "ema": 0.9}
ALL = bool(os.environ.get("UNSMOOTH_FUZZ"))
SECONDS = 7200 if ALL else 300


def run(out: Path) -> None:
    small_run(out, HOST, SHORT, save_every=0)  # a checkpoint after every step


def trial(out: Path) -> None:
    unsmooth.compare(
        [HOST, HOST + "+attn_scale"], "digits", out=out, seeds=1, costs=False, vitals="none", **{**SHORT, "epochs": 1}
    )


def check_kills(folder: Path, work: Callable[[Path], None], same: Callable[[Path], None], every: int) -> None:
    """Repeat the work in what kills leave of it, and compare with the uninterrupted work."""
    whole = folder / "whole"
    left = kills(whole, folder / "killed", partial(work, whole), 1 if ALL else every)
    assert len(left) > 3
    for kill in left:
        try:
            work(kill.folder)
            same(kill.folder)
        except BaseException as error:
            error.add_note(str(kill))
            raise
        shutil.rmtree(kill.folder)


def same_model(one: Path, other: Path) -> None:
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def same_run(one: Path, other: Path) -> None:
    assert same_state(trainer_state(one), trainer_state(other))
    assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()
    for name in ("last", "best"):
        same_model(one / name, other / name)
    assert (one / "scores.npz").read_bytes() == (other / "scores.npz").read_bytes()
    assert not list(other.rglob("*.tmp"))


def numbers(folder: Path) -> Any:
    content = json.loads((folder / "trial.json").read_text())
    content.pop("made")
    for arm in content["arms"]:
        for each in arm["runs"]:
            for name in ("seconds", "images_per_second", "path", "vitals_share"):
                each.pop(name, None)
        for name in ("seconds", "images_per_second"):
            arm.pop(name, None)
    return content


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_a_run(tmp_path: Path) -> None:
    check_kills(tmp_path, run, lambda out: same_run(tmp_path / "whole", out), every=24)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_compare(tmp_path: Path) -> None:
    def same(out: Path) -> None:
        assert numbers(tmp_path / "whole") == numbers(out)
        for whole in (tmp_path / "whole").glob("runs/*/seed*"):
            same_run(whole, out / whole.relative_to(tmp_path / "whole"))
        assert (out / "report.html").stat().st_size > 10_000

    check_kills(tmp_path, trial, same, every=48)


@pytest.mark.parametrize("remedy", ["+attn_scale", ""])
def test_save(tmp_path: Path, remedy: str) -> None:
    """Over an earlier save: the old model, the new one, or an error that says that the files do not belong together."""
    torch.manual_seed(0)
    old, new = unsmooth.create_model(HOST), unsmooth.create_model(HOST + remedy)
    folder, refused = tmp_path / "saved", 0
    unsmooth.save(old, folder)
    left = kills(folder, tmp_path / "killed", lambda: unsmooth.save(new, folder))
    assert len(left) > 10
    for kill in left:
        loaded, reason = None, ""
        try:
            loaded = unsmooth.load(kill.folder).state_dict()
        except UnsmoothError as error:
            reason = str(error)
        if loaded is None:
            assert "a save was interrupted. Save again." in reason, kill
            refused += 1
        else:
            assert any(same_state(loaded, model.state_dict()) for model in (old, new)), kill
        unsmooth.save(new, kill.folder)
        assert same_state(unsmooth.load(kill.folder).state_dict(), new.state_dict()), kill
    assert refused == bool(remedy)  # between the two renames


def content(path: Path) -> Any:
    """The bytes of a file. safetensors writes its header in any order, so that is read."""
    data = path.read_bytes()
    if ".safetensors" not in path.name or len(data) < 8:
        return data
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


@pytest.mark.slow
def test_a_copy_is_what_a_kill_leaves(tmp_path: Path) -> None:
    """The same files as a process leaves that is killed with SIGKILL."""
    event = 33
    copies = kills(tmp_path / "whole", tmp_path / "copies", partial(run, tmp_path / "whole"))
    (copy,) = (each for each in copies if each.event == event and not each.torn)
    killed = partial(kill_at, event, tmp_path / "killed", partial(run, tmp_path / "killed"))
    assert ended(in_child(killed)) == -signal.SIGKILL
    contents = []
    for folder in (copy.folder, tmp_path / "killed"):
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "events.out" not in path.name]
        names = [re.sub(r"\.\d+\.tmp$", ".tmp", str(path.relative_to(folder))) for path in files]
        kept = {name: content(path) for name, path in zip(names, files, strict=True) if "json" not in name}
        contents.append((names, {name: data for name, data in kept.items() if "state" not in name}))
    assert contents[0] == contents[1]

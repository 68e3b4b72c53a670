"""File names that are not UTF-8 are escaped in what is written."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import unsmooth
from unsmooth.cli.main import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other file systems only have Unicode names")
HOST = "vit_tiny_patch16_224(img_size=8, patch_size=4, in_chans=1, embed_dim=12, num_heads=3, depth=1)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images and a broken image in class folders, with names that are not UTF-8."""
    top = tmp_path / os.fsdecode(b"caf\xe9")
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in (b"a\xff", b"b"):
            classes = top / split / os.fsdecode(label)
            classes.mkdir(parents=True)
            for i in range(8):
                name = os.fsdecode(b"\xe9%d.png" % i)
                Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(classes / name)
            (classes / os.fsdecode(b"broken\xe9.png")).write_bytes(b"no image")
    return top


def test_a_run_finishes_and_lists_what_it_skipped(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / os.fsdecode(b"run\xe9")
    given = {"out": out, "epochs": 1, "warmup_epochs": 0, "batch_size": 4}
    result = unsmooth.train(HOST, folder, **given)
    content = json.loads((out / "result.json").read_bytes().decode("utf-8"))
    assert any(r"broken\udce9.png" in name for name in content["skipped"]["train"])
    assert unsmooth.train(HOST, folder, **given) == result  # its settings are recognised


def test_diagnose_writes_its_report(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / os.fsdecode(b"out\xe9")
    words = ["diagnose", HOST, "--images", str(folder), "--limit", "4", "--no-reference", "--vitals", "token_cosine"]
    assert main([*words, "--out", str(out)]) == 0
    (written,) = out.glob("*.json")
    diagnosis = unsmooth.Diagnosis.from_json(written)
    assert diagnosis.images.source.endswith(r"caf\udce9")
    (out / "report.html").read_bytes().decode("utf-8")
    capsys.readouterr().err.encode("utf-8")

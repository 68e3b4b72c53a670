"""What commands write and print: files first, never over a foreign file, on any terminal."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TextIO

import pytest

import unsmooth
from unsmooth.cli.main import main
from unsmooth.cli.terminal import echo, file_name, show

pytestmark = pytest.mark.usefixtures("coarse_figures")
VIT = "vit_tiny_patch16_224(depth=1, img_size=32, patch_size=8, embed_dim=12, num_heads=3)"
HOSTILE = "a\x1b]0;title\x07\x1b[2Jb\u202ec"


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diagnosis as a file, which `diagnose` shows without running a model."""
    path = tmp_path_factory.mktemp("diagnosis") / "given.json"
    unsmooth.diagnose(VIT, limit=2, vitals="token_cosine", reference=False).to_json(path)
    return path


def closed_pipe() -> TextIO:
    """A stream as `| head -1` leaves it."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", buffering=1)


def test_a_closed_pipe_is_no_failure_and_the_report_is_written(
    diagnosis: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", closed_pipe())
    assert main(["diagnose", str(diagnosis), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").exists() and len(list(tmp_path.glob("*.json"))) == 1
    sys.stdout.flush()  # as at the end of the process


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_latin_terminal_shows_the_result(
    diagnosis: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    bytes_ = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(bytes_, encoding="latin-1"))
    assert main(["diagnose", str(diagnosis), "--out", str(tmp_path), *form]) == 0
    assert (tmp_path / "report.html").exists()
    assert b"token_cosine" in bytes_.getvalue() or b"token cosine" in bytes_.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(
    diagnosis: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full)
    assert main(["diagnose", str(diagnosis)]) == 2
    assert "cannot write to standard output: No space left on device." in capsys.readouterr().err
    full.close()  # raises if bytes are left


def test_a_closed_standard_error_does_not_stop_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", closed_pipe())
    echo("a line")
    monkeypatch.setattr(sys, "stderr", None)
    echo("a line")


def test_no_escape_byte_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    echo(HOSTILE)
    show([HOSTILE])
    assert main(["diagnose", f"/{HOSTILE}.json"]) == 2
    out, err = capsys.readouterr()
    for text in (out, err):
        assert not set("\x1b\x07\u202e") & set(text) and r"\x1b" in text


def test_two_long_specs_have_two_files(tmp_path: Path) -> None:
    long = VIT + "+attn_scale(blocks=0)+feat_scale(blocks=0)+context_broadcast(position=mid)"
    first, second = long, long.replace("position=mid", "position=end")
    assert first[:80] == second[:80]
    assert file_name(first) != file_name(second)
    assert all(len(file_name(name)) <= 80 for name in (first, second))
    assert file_name("deit+attn_scale") == "deit+attn_scale"  # short names stay readable


@pytest.mark.parametrize("name", ["report.html", "{json}"])
def test_diagnose_refuses_to_overwrite_a_foreign_file(
    diagnosis: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = unsmooth.Diagnosis.from_json(diagnosis).model.name
    path = tmp_path / name.format(json=f"{file_name(model)}.json")
    path.write_text('{"mine": 1}')
    assert main(["diagnose", str(diagnosis), "--out", str(tmp_path)]) == 2
    assert path.read_text() == '{"mine": 1}' and len(list(tmp_path.iterdir())) == 1
    assert f"{path} is not a diagnosis of unsmooth and would be overwritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    "format", ["html", "svg", pytest.param("png", marks=pytest.mark.full), pytest.param("pdf", marks=pytest.mark.full)]
)
def test_diagnose_replaces_its_own_files(diagnosis: Path, tmp_path: Path, format: str) -> None:
    for _ in range(2):
        assert main(["diagnose", str(diagnosis), "--out", str(tmp_path), "--format", format]) == 0


def test_a_foreign_figure_stays(diagnosis: Path, tmp_path: Path) -> None:
    (tmp_path / "depth.png").write_bytes(b"mine")
    assert main(["diagnose", str(diagnosis), "--out", str(tmp_path), "--format", "png"]) == 2
    assert (tmp_path / "depth.png").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["report.html", "trial.json", "recipe.toml"])
def test_compare_refuses_to_overwrite_a_foreign_file(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("mine = 1\n")
    host = VIT.replace("img_size=32, patch_size=8", "img_size=8, patch_size=4, in_chans=1")
    words = ["compare", host, host + "+attn_scale", "--data", "digits", "--out", str(tmp_path), "--epochs", "1"]
    assert main(words) == 2
    assert (tmp_path / name).read_text() == "mine = 1\n" and len(list(tmp_path.iterdir())) == 1
    assert f"{tmp_path / name} is not of a trial and would be overwritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["diagnose", VIT, "--out", "{file}/x"],
        ["evaluate", VIT, "--data", "digits", "--out", "{file}/x/y.json"],
        ["bench", VIT, "--out", "{file}/x.json"],
    ],
)
def test_an_unwritable_folder_is_found_before_the_work(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr("unsmooth.surgery.create.create_host", lambda *_, **__: pytest.fail("a model was built"))
    assert main([word.format(file=file) for word in words]) == 2
    assert f"{file} is a file. Use a directory as --out." in capsys.readouterr().err

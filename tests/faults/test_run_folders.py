"""Run directories that are damaged, moved, read-only or on a full disk: own errors, and the same result after."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import unsmooth
from tests.faults.test_kills import ALL, HOST, SECONDS, run, same_run
from tests.support.file_events import fail_from, kills
from unsmooth.errors import UnsmoothError
from unsmooth.training.run_dir import RunDir

FLIPS = 20 if ALL else 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    run(out)
    return out


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def read_all(folder: Path) -> None:
    """Everything that reads a run: resume, its models, its numbers."""
    with suppress(UnsmoothError):
        run(folder)
    for name in ("best", "last"):
        with suppress(UnsmoothError):
            unsmooth.load(folder / name)
    with suppress(UnsmoothError):
        RunDir(folder).result()
    with suppress(UnsmoothError):
        unsmooth.train(HOST, "digits", out=folder, epochs=3)  # another run
    RunDir(folder).metrics()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("done", [True, False])
def test_every_file_damaged(whole: Path, tmp_path: Path, done: bool) -> None:
    """Truncated, empty, and with flipped bits."""
    rng = np.random.default_rng(0)
    names = [name for name in files(whole) if (whole / name).stat().st_size]
    assert len(names) >= 9
    for name in names:
        content = (whole / name).read_bytes()
        damages = [b"", content[: len(content) // 2], content[:-1]]
        for position in map(int, rng.integers(0, len(content), FLIPS)):
            flipped = bytearray(content)
            flipped[position] ^= 1 << int(rng.integers(8))
            damages.append(bytes(flipped))
        for index, damage in enumerate(damages):
            out = tmp_path / "run"
            shutil.copytree(whole, out)
            if not done:
                (out / "result.json").unlink()
            (out / name).write_bytes(damage)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    read_all(out)
                except BaseException as error:
                    error.add_note(f"damage {index} of {name}")
                    raise
            shutil.rmtree(out)


def test_a_moved_run_is_resumed(whole: Path, tmp_path: Path) -> None:
    left = kills(tmp_path / "run", tmp_path / "copies", lambda: run(tmp_path / "run"), every=20)
    elsewhere = tmp_path / "else where" / "rün"
    elsewhere.parent.mkdir()
    left[-1].folder.rename(elsewhere)
    run(elsewhere)
    same_run(whole, elsewhere)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_folder_is_one_line(tmp_path: Path, number: int) -> None:
    with pytest.raises(UnsmoothError, match=r"cannot write .*" + os.strerror(number)):
        fail_from(0, tmp_path / "run", lambda: run(tmp_path / "run"), number)


def test_a_finished_run_can_be_read_only(whole: Path) -> None:
    assert not fail_from(0, whole, lambda: run(whole), errno.EROFS)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_a_disk_that_is_full_from_any_event_on(whole: Path, tmp_path: Path) -> None:
    event, step, failed = 0, 1 if ALL else 23, True
    while failed:
        out = tmp_path / f"run{event}"
        failed, reason = attempt(out, event)
        assert not reason or "No space left on device" in reason, event
        run(out)
        same_run(whole, out)
        shutil.rmtree(out)
        event += step
    assert event > 60


def attempt(out: Path, event: int) -> tuple[bool, str]:
    """Run on a disk that is full from an event on: whether that happened, and the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorBoard's log ends
        try:
            return fail_from(event, out, lambda: run(out), errno.ENOSPC), ""
        except UnsmoothError as error:
            return True, str(error)

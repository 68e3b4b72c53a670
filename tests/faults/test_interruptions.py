"""Signals and closed terminals while runs train: nothing hangs, and what was trained is saved."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.runs import HOST
from unsmooth.__main__ import run
from unsmooth.cli import terminal

LONG = ["--data", "digits", "--epochs", "5000", "--train-images", "256", "--val-images", "20", "--batch-size", "32"]
LONG += ["--vitals-every", "0", "--validate-every", "5000"]


def start(command: list[str], **streams: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "unsmooth", *command], env=environment, **streams)  # type: ignore[call-overload,no-any-return]


def wait_for(condition, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"it ended with {process.returncode}"
        assert time.monotonic() < deadline, "it does not train"
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes], seconds: float = 60) -> int:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError("it hangs") from None


def compare_of_two(out: Path) -> list[str]:
    arms = [HOST, HOST + "+attn_scale"]
    return ["compare", *arms, *LONG, "--out", str(out), "--seeds", "1", "--jobs", "2", "--vitals", "none"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM], pytest.param([signal.SIGINT, signal.SIGINT], marks=pytest.mark.full)]
)
def test_compare_in_parallel_ends_at_signals_to_the_parent(tmp_path: Path, signals: list[signal.Signals]) -> None:
    process = start(compare_of_two(tmp_path), stderr=subprocess.PIPE)
    wait_for(lambda: len(list(tmp_path.rglob("metrics.jsonl"))) == 2, process)
    states = [path.parent / "state.safetensors" for path in tmp_path.rglob("metrics.jsonl")]
    wait_for(lambda: all(state.exists() for state in states), process)
    before = time.time()
    for number in signals:
        process.send_signal(number)
        time.sleep(0.05)
    assert end(process) == 130
    assert process.stderr is not None and b"run the same command again to resume" in process.stderr.read()
    if len(signals) == 1:  # the last step is saved in both
        assert all(state.stat().st_mtime > before - 1 for state in states)


@pytest.mark.slow
def test_a_closed_terminal_leaves_a_checkpoint(tmp_path: Path) -> None:
    """The hangup of a terminal is a SIGHUP, and every later write to it fails."""
    ours, theirs = pty.openpty()
    run = tmp_path / "run"
    process = start(
        ["train", HOST, *LONG, "--out", str(run)], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    os.set_blocking(ours, False)

    def reading() -> bool:
        with suppress(OSError):
            os.read(ours, 65536)
        return (run / "state.safetensors").exists()

    wait_for(reading, process)
    before = time.time()
    os.close(ours)
    process.send_signal(signal.SIGHUP)  # of the terminal's session leader, which a child of pytest is not
    assert end(process) == 130
    assert (run / "state.safetensors").stat().st_mtime > before - 1 and not (run / "lock.pid").exists()


@pytest.mark.slow
def test_a_closed_standard_error_does_not_stop_a_run(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    run = tmp_path / "run"
    process = start(["train", HOST, *LONG, "--out", str(run)], stdout=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    os.close(reader)
    metrics = run / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 3, process)
    process.send_signal(signal.SIGTERM)
    assert end(process) == 130
    assert (run / "state.safetensors").exists()


def test_bars_are_lost_quietly_when_the_terminal_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

        def flush(self) -> None:
            raise OSError(5, "Input/output error")

        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setenv("TERM", "xterm")
    with terminal.run_bars() as bars:
        bars.on_progress("run", 1, 2)
        bars.on_stage("a stage")


def test_an_interrupt_during_the_imports_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupt:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "unsmooth.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "unsmooth.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupt(), *sys.meta_path])
    assert run() == 130
    assert capsys.readouterr().err == "unsmooth: interrupted\n"

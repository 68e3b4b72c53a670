"""Signals and closed terminals while runs train: nothing hangs, and what was trained is saved."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from tests.support.runs import HOST, PROCESSES, ended, start_command, write_to
from unsmooth.__main__ import run
from unsmooth.cli import terminal
from unsmooth.trials import runner

LONG = ["--data", "digits", "--epochs", "5000", "--train-images", "256", "--val-images", "20", "--batch-size", "32"]
LONG += ["--vitals-every", "0", "--validate-every", "5000"]


def wait_for(condition: Callable[[], bool], process: ForkServerProcess, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if process.exitcode is None and time.monotonic() > deadline:
            process.kill()
            raise AssertionError("it does not train")
        assert process.exitcode is None, f"it ended with {process.exitcode}"
        time.sleep(0.1)


def send(process: ForkServerProcess, number: signal.Signals) -> None:
    assert process.pid
    os.kill(process.pid, number)


def compare_of_two(out: Path) -> list[str]:
    arms = [HOST, HOST + "+attn_scale"]
    return ["compare", *arms, *LONG, "--out", str(out), "--seeds", "1", "--jobs", "2", "--vitals", "none"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM], pytest.param([signal.SIGINT, signal.SIGINT], marks=pytest.mark.full)]
)
def test_compare_in_parallel_ends_at_signals_to_the_parent(tmp_path: Path, signals: list[signal.Signals]) -> None:
    log = tmp_path / "log"

    def prepare() -> None:
        write_to(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
        # Workers that are forked need not import torch; tests/trials/test_compare.py has those of the trial itself.
        runner.multiprocessing.get_context = lambda method: PROCESSES  # type: ignore[attr-defined]

    process = start_command(*compare_of_two(tmp_path / "trial"), prepare=prepare)
    wait_for(lambda: len(list(tmp_path.rglob("metrics.jsonl"))) == 2, process)
    states = [path.parent / "state.safetensors" for path in tmp_path.rglob("metrics.jsonl")]
    wait_for(lambda: all(state.exists() for state in states), process)
    before = time.time()
    for number in signals:
        send(process, number)
        time.sleep(0.05)
    assert ended(process) == 130
    assert "run the same command again to resume" in log.read_text()
    if len(signals) == 1:  # the last step is saved in both
        assert all(state.stat().st_mtime > before - 1 for state in states)


@pytest.mark.slow
def test_a_closed_terminal_leaves_a_checkpoint(tmp_path: Path) -> None:
    """The hangup of a terminal is a SIGHUP, and every later write to it fails."""
    ours, theirs = pty.openpty()
    run = tmp_path / "run"
    name = os.ttyname(theirs)

    def prepare() -> None:
        os.setsid()
        file = os.open(name, os.O_RDWR | os.O_NOCTTY)
        os.dup2(file, 0)
        write_to(file, 1, 2)

    process = start_command("train", HOST, *LONG, "--out", str(run), prepare=prepare)
    os.set_blocking(ours, False)

    def reading() -> bool:
        with suppress(OSError):
            os.read(ours, 65536)
        return (run / "state.safetensors").exists()

    wait_for(reading, process)
    os.close(theirs)
    before = time.time()
    os.close(ours)
    send(process, signal.SIGHUP)  # of the terminal's session leader, which the child is not
    assert ended(process) == 130
    assert (run / "state.safetensors").stat().st_mtime > before - 1 and not (run / "lock.pid").exists()


@pytest.mark.slow
def test_a_closed_standard_error_does_not_stop_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def prepare() -> None:
        reader, writer = os.pipe()
        write_to(writer, 2)
        os.close(reader)

    process = start_command("train", HOST, *LONG, "--out", str(run), prepare=prepare)
    metrics = run / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 3, process)
    send(process, signal.SIGTERM)
    assert ended(process) == 130
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

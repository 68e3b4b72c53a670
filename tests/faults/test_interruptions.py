"""Signals and closed terminals while runs train: nothing hangs, and what was trained is saved."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import HOST, PROCESSES, ended, start_command, trainer_state, write_to
from unsmooth.__main__ import run
from unsmooth.cli import terminal
from unsmooth.training.observer import ProgressObserver
from unsmooth.trials import runner

LONG = ["--data", "digits", "--epochs", "5000", "--train-images", "256", "--val-images", "20", "--batch-size", "32"]
LONG += ["--vitals-every", "0", "--validate-every", "5000"]
PLACE = (1, 3)  # the epoch and the step after which a run is interrupted


def after_step(interrupt: Callable[[], Any], each: Callable[[], Any] = lambda: None) -> None:
    """Call `interrupt` in the run of this process after the step of `PLACE`, and `each` after every step."""
    report = ProgressObserver.step

    def step(self: ProgressObserver, *place: int) -> None:
        report(self, *place)
        each()
        if place == PLACE:
            interrupt()

    ProgressObserver.step = step  # type: ignore[method-assign]


def place_of(run: Path) -> tuple[int, int]:
    """The epoch and the step of a checkpoint."""
    state = trainer_state(run)
    return state["epoch"], state["step"]


def compare_of_two(out: Path) -> list[str]:
    arms = [HOST, HOST + "+attn_scale"]
    return ["compare", *arms, *LONG, "--out", str(out), "--seeds", "1", "--jobs", "2", "--vitals", "none"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM], pytest.param([signal.SIGINT, signal.SIGINT], marks=pytest.mark.full)]
)
def test_compare_in_parallel_ends_at_signals_to_the_parent(tmp_path: Path, signals: list[signal.Signals]) -> None:
    log, steps = tmp_path / "log", tmp_path / "steps"

    def prepare() -> None:
        write_to(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
        # Workers that are forked need not import torch; tests/trials/test_compare.py has those of the trial itself.
        runner.multiprocessing.get_context = lambda method: PROCESSES  # type: ignore[attr-defined]
        reported, report = dict[str, int](), runner.AllRuns.__call__

        def signal_when_both_train(
            self: runner.AllRuns, name: str, done: int, total: int, line: Mapping[str, Any] | None
        ) -> None:
            report(self, name, done, total, line)
            if done:
                reported[name] = done
            if len(reported) == 2 and not steps.exists():
                steps.write_text(" ".join(map(str, reported.values())))
                for number in signals:
                    os.kill(os.getpid(), number)
                    time.sleep(0.05)

        runner.AllRuns.__call__ = signal_when_both_train  # type: ignore[method-assign]

    process = start_command(*compare_of_two(tmp_path / "trial"), prepare=prepare)
    assert ended(process) == 130
    assert "run the same command again to resume" in log.read_text()
    if len(signals) == 1:  # the last step is saved in both
        runs = [place_of(path.parent) for path in tmp_path.rglob("state.safetensors")]
        saved = sorted(epoch * 8 + step for epoch, step in runs)
        assert len(saved) == 2
        assert all(a >= b for a, b in zip(saved, sorted(map(int, steps.read_text().split())), strict=True))


@pytest.mark.slow
def test_a_closed_terminal_leaves_a_checkpoint(tmp_path: Path) -> None:
    """The hangup of a terminal is a SIGHUP, and every later write to it fails."""
    run = tmp_path / "run"

    def prepare() -> None:
        ours, theirs = pty.openpty()
        os.set_blocking(ours, False)
        os.setsid()
        os.dup2(theirs, 0)
        write_to(theirs, 1, 2)
        os.close(theirs)

        def read() -> None:
            with suppress(OSError):
                os.read(ours, 65536)

        def close() -> None:
            os.close(ours)
            os.kill(os.getpid(), signal.SIGHUP)  # of the terminal's session leader, which this process is not

        after_step(close, read)

    process = start_command("train", HOST, *LONG, "--out", str(run), prepare=prepare)
    assert ended(process) == 130
    assert place_of(run) == PLACE and not (run / "lock.pid").exists()


@pytest.mark.slow
def test_a_closed_standard_error_does_not_stop_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def prepare() -> None:
        reader, writer = os.pipe()
        write_to(writer, 2)
        os.close(reader)
        after_step(lambda: os.kill(os.getpid(), signal.SIGTERM))

    process = start_command("train", HOST, *LONG, "--out", str(run), prepare=prepare)
    assert ended(process) == 130
    assert place_of(run) == PLACE


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

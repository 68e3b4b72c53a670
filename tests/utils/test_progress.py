"""Progress: the stages of a diagnosis, the runs of a trial, and where they are shown."""

from __future__ import annotations

import io
import re
import sys
import types

import pytest

import unsmooth
from unsmooth.cli.terminal import RunBars
from unsmooth.results.training import EpochMetrics
from unsmooth.trials.runner import AllRuns
from unsmooth.utils import progress as progress_module
from unsmooth.utils.progress import StageLog, StageText, rough_duration, show_progress

SPEC = "vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8, embed_dim=24, num_heads=2)"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch, term: str = "xterm") -> Terminal:
    """Standard error becomes a terminal. Not a fixture: pytest replaces the stream before the test is called."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", term)
    return stream


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: self.now)


def test_a_diagnosis_reports_its_stages_with_their_totals() -> None:
    seen: list[tuple[str, float, float | None]] = []
    unsmooth.diagnose(
        SPEC, limit=6, batch_size=2, vitals="token_cosine,effective_rank,smoothing_bound,condition_bound",
        progress=lambda *report: seen.append(report),
    )  # fmt: skip
    assert list(dict.fromkeys(stage for stage, *_ in seen)) == [
        "examining", "images", "bounds", "random reference", "samples", "verdict",
    ]  # fmt: skip
    assert [report for report in seen if report[0] == "images"] == [("images", n, 6) for n in (0, 2, 4, 6)]
    assert [report for report in seen if report[0] == "bounds"] == [("bounds", n, 2) for n in (0, 1, 2)]
    assert seen[0] == ("examining", 0, None)
    for stage in ("images", "bounds", "random reference"):
        done, total = [report for report in seen if report[0] == stage][-1][1:]
        assert done == total


def test_stages_that_are_not_run_are_not_reported() -> None:
    seen = []
    unsmooth.diagnose(SPEC, limit=2, quick=True, progress=lambda stage, *_: seen.append(stage))
    assert set(seen) == {"examining", "images", "verdict"}


def test_python_shows_nothing_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unsmooth.diagnose(SPEC, limit=2, quick=True)
    unsmooth.diagnose(SPEC, limit=2, quick=True, progress=False)
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""
    monkeypatch.setattr(progress_module, "EVERY", 0.0)
    unsmooth.diagnose(SPEC, limit=2, quick=True, progress=True)
    assert capsys.readouterr().err.startswith("examining\n")


def test_python_shows_bars_on_a_terminal_and_removes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    unsmooth.diagnose(SPEC, limit=2, quick=True, progress=False)
    assert stream.getvalue() == ""
    unsmooth.diagnose(SPEC, limit=2, quick=True)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "examining" in text and re.search(r"images +━+ 2/2", text)
    assert stream.getvalue().endswith("\x1b[2K")  # the last line is erased


def test_a_dumb_terminal_has_no_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch, "dumb")
    with show_progress() as report:
        report("images", 1, 2)
    assert stream.getvalue() == ""


def test_a_notebook_has_one_line_that_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(data["text/plain"])

    fake = types.ModuleType("IPython")
    fake.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display = types.ModuleType("IPython.display")
    display.display = lambda data, raw, display_id: Handle()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    unsmooth.diagnose(SPEC, limit=2, quick=True)
    assert shown == ["examining", "images: 0 of 2", "verdict", ""]
    with pytest.raises(unsmooth.UnsmoothError):
        unsmooth.diagnose(SPEC, "no such folder")
    assert shown[-2:] == ["examining", ""]
    count = len(shown)
    unsmooth.diagnose(SPEC, limit=2, quick=True, progress=False)
    assert len(shown) == count


def test_a_log_has_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    log = StageLog()
    for second in range(13):  # one image per second
        clock.now = 100.0 + second
        log("images", second, 40)
    assert capsys.readouterr().err.splitlines() == [
        "images: 5 of 40, 35 s left", "images: 10 of 40, 30 s left",
    ]  # fmt: skip


def test_time_left_counts_from_what_was_done_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    text = StageText()
    assert text.line("runs", 9, 12) == "runs: 9 of 12"
    clock.now += 60
    assert text.line("runs", 9.5, 12) == "runs: 9 of 12, 5 min left"  # half a run per minute, 2.5 runs to go
    assert text.line("\x1b[31mred", 0, None) == "\\x1b[31mred"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (99, "99 s"), (100, "2 min"), (3570, "1 h 0 min"), (7500, "2 h 5 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert rough_duration(seconds) == text


def test_all_runs_are_counted_beside_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    bars, whole = RunBars(None), []

    def on_runs(*report: float) -> None:
        whole.append(report)
        bars.on_runs(*report)

    runs = AllRuns(bars.on_progress, on_runs, 1, 4)
    runs("plain, seed 1", 5, 10, None)
    runs("attn_scale, seed 1", 10, 10, EpochMetrics(1, {"train_loss": 2.0}))
    assert whole == [("runs", 1, 4), ("runs", 1.5, 4), ("runs", 2.5, 4)]
    assert re.fullmatch(
        r"attn_scale, seed 1: epoch 1, loss 2.000, 0 s \(runs: 2 of 4, 0 s left\)\n", capsys.readouterr().err
    )

"""Records of a monitor: what is written to files, and what each tracker is asked to write.

tensorboardX and JSON are the real thing. W&B, MLflow and Trackio are too heavy for the development environment; their
stand-ins have the signatures of the functions that are used, as of wandb 0.31, mlflow-skinny 3.17 and trackio 0.43.
"""

from __future__ import annotations

import json
import struct
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.test_monitor import loop, small_model
from unsmooth import Monitor
from unsmooth.errors import UnsmoothError
from unsmooth.monitoring.writers import JsonLines, Records, TensorBoard, Writer
from unsmooth.results.training import Alarm

ALARM = Alarm(2, "max_logit", 1, 60.0, 50.0, "the largest logit is 60", "Apply qk_norm.")
SCALARS = {"token_cosine/block 0": 0.5, "token_cosine/block 1": 0.25}
PREFIXED = {f"unsmooth/{name}": value for name, value in SCALARS.items()}


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.jsonl"
    model = small_model()
    with Monitor(model, every=2, log=path, alarms={"max_logit": 0.0}, on_alarm="ignore") as monitor:
        loop(model)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("step") for line in lines] == [0, None, 2, 4]
    assert lines[2]["vitals"]["token_cosine/block 1"] == monitor.history[1].vitals["token_cosine"][1]
    assert lines[1]["alarm"]["kind"] == "max_logit" and lines[1]["alarm"]["action"]


def test_tensorboard(tmp_path: Path) -> None:
    """The event file holds tag and value, read back with tensorboardX's own message types."""
    from tensorboardX.proto.event_pb2 import Event

    log = Records(f"tensorboard:{tmp_path}")
    log.write(3, SCALARS)
    log.alarm(ALARM)
    log.close()
    (file,) = tmp_path.iterdir()
    data, events = file.read_bytes(), []
    while data:  # a record: length, checksum, message, checksum
        (length,) = struct.unpack("<Q", data[:8])
        events.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    written = {v.tag: (event.step, v.simple_value) for event in events for v in event.summary.value}
    assert all(written[name.replace(" ", "_")] == (3, value) for name, value in SCALARS.items())
    assert any(tag.startswith("alarm") for tag in written)


class Calls:
    """Functions of a tracker that note how they are called."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []

    def wandb(self) -> Any:
        def define_metric(name: str, step_metric: str | None = None) -> None:
            self.made.append((name, step_metric))

        def log(data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
            self.made.append((data, step))

        def alert(title: str, text: str, level: str | None = None, wait_duration: float | None = None) -> None:
            self.made.append((title, text, level))

        return types.SimpleNamespace(run=types.SimpleNamespace(define_metric=define_metric, log=log, alert=alert))

    def mlflow(self) -> Any:
        def log_metrics(metrics: dict[str, float], step: int | None = None, synchronous: bool | None = None) -> None:
            self.made.append((metrics, step))

        def set_tag(key: str, value: Any, synchronous: bool | None = None) -> None:
            self.made.append((key, value))

        return types.SimpleNamespace(log_metrics=log_metrics, set_tag=set_tag)

    def trackio(self) -> Any:
        def log(metrics: dict[str, Any], step: int | None = None) -> None:
            self.made.append((metrics, step))

        def alert(title: str, text: str | None = None, level: str = "warn", webhook_url: str | None = None) -> None:
            self.made.append((title, text))

        return types.SimpleNamespace(log=log, alert=alert)


EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "wandb": [
        ("unsmooth/step", None),
        ("unsmooth/*", "unsmooth/step"),
        ({"unsmooth/step": 3, **PREFIXED}, None),
        ("unsmooth: max_logit", str(ALARM), "WARN"),
    ],
    "mlflow": [(PREFIXED, 3), ("unsmooth.alarm.max_logit", str(ALARM))],
    "trackio": [(PREFIXED, 3), ("unsmooth: max_logit", str(ALARM))],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_trackers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    make: Callable[[], Any] = getattr(calls, name)
    monkeypatch.setitem(sys.modules, name, make())
    log = Records(name)
    log.write(3, SCALARS)
    log.alarm(ALARM)
    log.close()
    assert calls.made == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsmoothError, match=rf"needs {name}. pip install {name}$"):
        Records(name)


def test_tensorboard_without_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UnsmoothError, match=r"needs tensorboardX. pip install 'unsmooth\[tensorboard\]'"):
        Records("tensorboard")


def test_wandb_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=None))
    with pytest.raises(UnsmoothError, match=r"no active W&B run. Call wandb.init"):
        Records("wandb")


def test_a_record_that_fails_is_given_up(tmp_path: Path) -> None:
    class Broken:
        def write(self, step: int, scalars: Any) -> None:
            raise ConnectionError("no network")

        def alarm(self, alarm: Alarm) -> None: ...
        def close(self) -> None: ...

    assert isinstance(Broken(), Writer)
    log = Records([Broken(), JsonLines(tmp_path / "run.jsonl")])
    with pytest.warns(UserWarning, match="Broken stopped: no network"):
        log.write(1, SCALARS)
    log.write(2, SCALARS)
    log.close()
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 2


def test_bad_records(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for log, message in (
        (3, "the methods write, alarm and close"),
        ("wandb:runs", "wandb takes no folder"),
        (tmp_path / "file" / "run.jsonl", "cannot write"),
    ):
        with pytest.raises(UnsmoothError, match=message):
            Records(log)  # type: ignore[arg-type]
    with pytest.raises(UnsmoothError, match="cannot write"):
        TensorBoard(tmp_path / "file")

"""Results of training runs: files of today and of recorded trials are read and written without loss."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from unsmooth.errors import UnsmoothError
from unsmooth.results.record import plain_values, read_record
from unsmooth.results.training import Alarm, BestEpoch, EpochMetrics, RunSettings, TrainingResult
from unsmooth.training.run_dir import RunDir

RECORDS = Path(__file__).parents[2] / "results" / "trials"
RESULT: dict[str, Any] = {
    "miou": 0.25, "images": 2, "class_iou": [0.5, None], "skipped": {"train": {}, "val": {"x.jpg": "it is empty"}},
    "best": {"epoch": 3, "miou": 0.5}, "epochs": 4, "seconds": 1.5, "images_per_second": 80.0, "vitals_share": 0.0,
}  # fmt: skip
EPOCH: dict[str, Any] = {
    "epoch": 1, "lr": 0.1, "train_loss": 2.0, "val_miou": None, "vitals": {"max_logit": [1.0, None, [2.0, None]]},
    "alarms": [{"step": 4, "kind": "max_logit", "block": 1, "value": 2.0, "limit": 1.0, "why": "a", "action": "b"}],
}  # fmt: skip


@pytest.mark.parametrize("trial", ["no_skip", "retrofit"])
def test_recorded_runs_are_read_without_loss(trial: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(RECORDS / f"{trial}.zip") as archive:
        runs = [Path(name).parent for name in archive.namelist() if name.endswith("result.json")]
        assert runs
        for folder in runs:
            for name in ("result.json", "run.json", "metrics.jsonl"):
                archive.extract(f"{folder.as_posix()}/{name}", tmp_path)
    for folder in runs:
        run = RunDir(tmp_path / folder)
        result, settings = run.result(), run.settings()
        assert result is not None and settings is not None
        stored = json.loads(run.result_file.read_text())
        assert result.to_dict() == {"format": 1, "kind": "training result", **stored}
        assert settings.to_dict() == json.loads(run.settings_file.read_text())
        lines = run.metrics_file.read_text()
        run.truncate_metrics(result.epochs)
        assert run.metrics_file.read_text() == lines


def test_metrics_are_beside_the_fields() -> None:
    result = TrainingResult.from_dict(RESULT)
    assert result.keys() == ["miou", "class_iou"] and result["class_iou"] == [0.5, None]
    assert (result.images, result.best.epoch, result.best["miou"]) == (2, 3, 0.5)
    assert TrainingResult.from_dict(result.to_dict()) == result
    assert result.to_dict() == {"format": 1, "kind": "training result", **RESULT}
    with pytest.raises(UnsmoothError, match=r"this result has no metric 'top1'. Known: class_iou, miou"):
        result["top1"]


def test_an_epoch_is_written_as_it_was_read() -> None:
    line = read_record(EpochMetrics, EPOCH)
    assert json.dumps(plain_values(line)) == json.dumps(EPOCH)
    assert line["lr"] == 0.1 and line.alarms == [Alarm(4, "max_logit", 1, 2.0, 1.0, "a", "b")]
    assert plain_values(EpochMetrics(2, {"lr": 0.1})) == {"epoch": 2, "lr": 0.1}


def test_a_metric_that_is_not_finite_has_no_value() -> None:
    assert plain_values(BestEpoch(0, {"top1": float("-inf")})) == {"epoch": 0, "top1": None}


def test_a_result_prints_its_scores() -> None:
    assert str(TrainingResult.from_dict(RESULT)).splitlines() == [
        "mIoU 25.00 % on 2 images after 4 epochs (best: mIoU 50.00 % after epoch 3), 80 images/s",
        "skipped 1 broken images, listed in result.json",
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**RESULT, "epochs": "many"}, "epochs: Input should be a valid integer"),
        ({**RESULT, "miou": "high"}, "miou"),
        ({key: value for key, value in RESULT.items() if key != "best"}, "best: Field required"),
        ({**RESULT, "kind": "trial"}, "is not a training result. Use a file written by `unsmooth train`"),
        ({**RESULT, "format": 2}, "has format 2"),
    ],
)
def test_other_results_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        TrainingResult.from_dict(values, "result.json")


def test_the_schema_describes_the_files() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = TrainingResult.json_schema()
    jsonschema.validate(TrainingResult.from_dict(RESULT).to_dict(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**TrainingResult.from_dict(RESULT).to_dict(), "miou": "high"}, schema)
    assert "command" in RunSettings.json_schema()["required"]

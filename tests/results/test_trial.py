"""Trials in JSON: recorded files load, are written back as they were, and match the schema; others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.trial_example import trial
from unsmooth.errors import UnsmoothError
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.trial import DiagnosisSummary, Trial

RECORDED = sorted((Path(__file__).parents[2] / "results" / "trials").glob("*.json"))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_trials_load_and_match_the_schema(path: Path) -> None:
    loaded = Trial.from_json(path)
    assert loaded.to_dict() == read(path)
    assert any(isinstance(arm.diagnosis, DiagnosisSummary) for arm in loaded.arms)
    assert all(arm.diagnosed is None for arm in loaded.arms), "a summary is no diagnosis"
    jsonschema.validate(read(path), Trial.json_schema())


def test_the_diagnosis_of_an_arm_is_a_diagnosis() -> None:
    values = trial()
    loaded = Trial.from_dict(values)
    assert isinstance(loaded.arms[0].diagnosed, Diagnosis)
    assert loaded.arms[0].diagnosed.to_dict() == loaded.to_dict()["arms"][0]["diagnosis"]
    assert Trial.from_dict(loaded.to_dict()) == loaded
    jsonschema.validate(loaded.to_dict(), Trial.json_schema())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 99}, "format 99"),
        ({"kind": "bench"}, "is not a diagnosis"),
        ({"vitals": 3}, "a valid diagnosis"),
    ],
)
def test_a_diagnosis_of_an_arm_that_cannot_be_read_is_refused(change: dict[str, Any], words: str) -> None:
    values = trial()
    values["arms"][0]["diagnosis"] |= change
    with pytest.raises(UnsmoothError, match=rf"this trial is not a valid trial: arms\.0\.diagnosis.*{words}"):
        Trial.from_dict(values)

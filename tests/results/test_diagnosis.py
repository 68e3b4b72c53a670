"""Diagnoses as typed records: files of format 1 are read and written without loss, others are refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_diagnosis_page import diagnosis
from unsmooth.errors import UnsmoothError
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.measured import Spread

RESULTS = Path(__file__).parents[2] / "results"


def without(values: dict[str, Any], *path: str | int) -> dict[str, Any]:
    """A copy without one key."""
    values = copy.deepcopy(values)
    inner: Any = values
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return values


def test_values_are_written_as_they_were_read() -> None:
    values = diagnosis()
    assert Diagnosis.from_dict(values).to_dict() == values
    assert json.loads(Diagnosis.from_dict(values).to_json()) == values


@pytest.mark.parametrize("key", ["broken", "reference", "samples", "learned", "findings"])
def test_some_values_may_be_missing(key: str) -> None:
    assert not getattr(Diagnosis.from_dict(without(diagnosis(), key)), key)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "is not a diagnosis. Use a file written by `unsmooth diagnose`"),
        (diagnosis(kind="trial"), "is not a diagnosis"),
        (diagnosis(format=2), "has format 2; this version of unsmooth reads format 1"),
        (without(diagnosis(), "model", "class"), "model.class: Field required"),
        (without(diagnosis(), "verdict"), "verdict: Field required"),
        (diagnosis(extra=1), "extra: Unexpected"),
        (diagnosis(images={**diagnosis()["images"], "count": "many"}), "images.count: Input should be a valid integer"),
    ],
)
def test_other_values_are_refused(values: Any, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message.replace("(", r"\(")):
        Diagnosis.from_dict(values, "x.json")


def test_infinity_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        Spread(float("inf"))


def test_values_are_saved_with_six_digits() -> None:
    assert Spread(1 / 3, 0.1, 0.0, 1.0, 4).rounded() == Spread(0.333333, 0.1, 0.0, 1.0, 4)
    assert Spread([1 / 3, None], [0.1, None], [0.0, None], [1.0, None], 4).rounded() == Spread(
        [0.333333, None], [0.1, None], images=4
    )


def test_the_recorded_diagnosis_can_be_read() -> None:
    recorded = Diagnosis.from_json(RESULTS / "saliency_vits14.json")
    assert (recorded.verdict, recorded.conclusion.blocks) == ("collapsing", [10, 11])
    assert "4.2 times the norm of the skip" in recorded.conclusion.why
    assert "saliency" in recorded.conclusion.caveat
    assert recorded["token_cosine"][11] == pytest.approx(0.698, abs=5e-4)  # README.md of the real data
    assert not recorded.samples


def test_the_schema_names_the_keys_of_the_file() -> None:
    schema = Diagnosis.json_schema()
    assert set(schema["properties"]) == set(diagnosis())
    assert {"format", "kind", "model", "images", "vitals", "made", "verdict"} <= set(schema["required"])
    assert "class" in schema["$defs"]["ModelInfo"]["properties"]

"""Comparing two diagnoses, and a diagnosis as a mapping."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from tests.report.test_diagnosis_page import diagnosis
from unsmooth.cli.main import main
from unsmooth.errors import UnsmoothError
from unsmooth.results.diagnosis import Diagnosis


def pair(**means: float) -> tuple[Diagnosis, Diagnosis]:
    """Two diagnoses; in the second one, the last block of some vitals has another mean."""
    before = diagnosis()
    after: dict[str, Any] = copy.deepcopy(before)
    for key, mean in means.items():
        after["vitals"][key]["parts"][""][-1] = {**after["vitals"][key]["parts"][""][-1], "mean": mean}
    return Diagnosis.from_dict(before), Diagnosis.from_dict(after)


def test_nothing_changed() -> None:
    before, after = pair()
    comparison = before.compare(after)
    assert comparison.changed == [] and str(comparison) == "Nothing changed."


def test_a_change_is_measured_against_the_spread_of_the_images() -> None:
    """Block 3 has mean 0.5 and sd 0.05 on 8 images: two standard errors of a difference are 0.05."""
    for mean, beyond in ((0.54, False), (0.56, True)):
        before, after = pair(token_cosine=mean)
        (change,) = before.compare(after).changed
        assert (change.key, change.block, change.beyond) == ("token_cosine", 3, beyond)
        assert change.delta == pytest.approx(mean - 0.5) and change.sd == pytest.approx(0.05)
        text = str(before.compare(after))
        assert ("changed in block 3" in text) == beyond and ("Within the images' spread" in text) != beyond


def test_the_largest_change_comes_first() -> None:
    before, after = pair(token_cosine=0.6, attention_cosine=0.9)
    assert [change.key for change in before.compare(after).changed] == ["attention_cosine", "token_cosine"]


def test_other_images_and_other_depths_are_said() -> None:
    before = Diagnosis.from_dict(diagnosis())
    other = diagnosis()
    other["images"]["count"] = 9
    assert "The images differ: 8 from photographs" in str(before.compare(Diagnosis.from_dict(other)))
    with pytest.raises(UnsmoothError, match="4 blocks and b has 5"):
        before.compare(Diagnosis.from_dict(diagnosis("b", 5)))


def test_the_command_shows_differences(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, one in zip("ab", pair(token_cosine=0.8), strict=True):
        one.to_json(tmp_path / f"{name}.json")
    assert main(["diagnose", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"3 +0\.800 +\+0\.300 ", printed) and re.search(r"2 +0\.400 +=", printed)
    assert "token_cosine: +0.3 in block 3 (0.5 → 0.8, spread over images 0.05)" in " ".join(printed.split())


def test_a_diagnosis_is_a_mapping_of_vitals() -> None:
    one = Diagnosis.from_dict(diagnosis())
    assert list(one) == one.keys() == one._ipython_key_completions_() and len(one) == len(one.vitals)
    assert "token_cosine" in one and "token" not in one and 3 not in one
    assert dict(one.items())["token_cosine"].mean == one["token_cosine"].mean
    assert "depth_probe" in one and "depth_probe" not in dict(one.items())  # it has no value on any block
    assert len(one.values()) == len(one.items())


def test_files_of_older_versions_load() -> None:
    old = diagnosis()
    del old["limits"]
    for key in ("levels", "trends", "caveat", "steps", "would_change"):
        del old["verdict"][key]
    for key in ("block", "value", "limit", "margin", "threshold", "source"):
        del old["findings"][0]["evidence"][0][key]
    one = Diagnosis.from_dict(old)
    assert one.to_dict() == old and one.findings[0].margin is None and "Verdict: collapsing" in str(one)

"""Tables of hand-written pages come from records of benchmarks, and goals say whether they are reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import records
from tools import bench_tables
from tools.bench_tables import BLOCK
from tools.markdown import DOCS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setattr(bench_tables, "FOLDER", tmp_path)
    return tmp_path


def test_a_recorded_table_replaces_that_of_a_page(folder: Path) -> None:
    record = records.Record("seam", "40 rounds")
    record.table("seam", ("arm", "µs"), [("`attn_scale`", "51")])
    record.write()
    page = "before\n<!-- bench: seam.seam -->\nold\n<!-- /bench -->\n<!-- bench: adder.rates -->\nkept\n<!-- /bench -->"
    new, kept = BLOCK.sub(bench_tables._block, page).split("<!-- bench: adder.rates -->")
    assert "| arm | µs |\n|---|---|\n| `attn_scale` | 51 |\n\n40 rounds\n<!-- /bench -->" in new and "old" not in new
    assert kept == "\nkept\n<!-- /bench -->"


def test_missed_goals_are_named_with_their_profile(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = records.Record("seam", "40 rounds")
    assert record.goal("hook", 15.0, 15, at_most=True, unit=" µs").cell == "≤ 15 µs"
    assert record.goal("attention", 51.2, 45, at_most=True, profile="small attn_scale").cell == "≤ 45, missed"
    assert record.goal("speed", 0.25, 0.25).reached and not record.goal("train", 0.2, 0.25).reached
    record.write()
    capsys.readouterr()
    growth = [("memory", "2 GiB", True), ("slope by tokens", "2 against 1", False)]
    monkeypatch.setattr(records.growth_page, "goal_rows", lambda record: growth)
    records.main()
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "3 of 6 goals are reached."
    assert lines[2:4] == ["- attention: 51.2 (goal: ≤ 45, missed); profile: small attn_scale",
                          "- train: 0.2 (goal: ≥ 0.25, missed)"]  # fmt: skip
    assert lines[-1] == "- slope by tokens: 2 against 1"


def test_every_record_is_on_a_page() -> None:
    """A table that no page shows would be measured for nothing."""
    shown = {
        found.group(2, 3) for name in bench_tables.PAGES for found in BLOCK.finditer((DOCS / name).read_text("utf-8"))
    }
    for path in bench_tables.FOLDER.glob("*.json"):
        for key in json.loads(path.read_text("utf-8"))["tables"]:
            assert {(path.stem, key), (path.stem, "*")} & shown, f"{path.name}: {key}"

"""The numbers of the demo are those of its record, which `python benchmarks/demo.py FOLDER` writes."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from unsmooth.cli import demo

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "demo.json").read_text(encoding="utf-8"))
MEAN = {arm: fmean(runs) for arm, runs in RECORD["top1"].items()}
HEALTHY, ILL, TREATED = (f"{100 * MEAN[arm]:.1f}" for arm in ("with_skip", "without_skip", "treated"))
POINTS = "+{mean:.1f} points (+{low:.1f} to +{high:.1f})".format(
    **{name: 100 * value for name, value in RECORD["difference"].items()}
)


def test_the_record_is_of_this_demo() -> None:
    assert (RECORD["host"], RECORD["ill"], RECORD["remedy"]) == (demo.HOST, demo.ILL, demo.REMEDY)
    assert RECORD["recipe"] == json.loads(json.dumps({"name": "small", **demo.BUDGET}))
    assert [len(runs) for runs in RECORD["top1"].values()] == [1, demo.SEEDS, demo.SEEDS]
    assert RECORD["difference"]["mean"] == pytest.approx(MEAN["treated"] - MEAN["without_skip"])


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (
            "README.md",
            f"classifies {ILL} % of scanned digits; with augmented shortcuts {TREATED} %: {POINTS}, three seeds.",
        ),
        ("README.md", f"With its skip: {HEALTHY} %."),
        ("docs/index.md", f"trains hosts without their attention skip, from {ILL} to {TREATED} % on digits"),
        ("docs/get-started.md", f"with the skip | {HEALTHY} | 1 |"),
        ("docs/get-started.md", f"without it | {ILL} | {demo.SEEDS} |"),
        ("docs/get-started.md", f"with `augmented_shortcut` | {TREATED} | {demo.SEEDS} |"),
        ("docs/get-started.md", f"The difference from the remedy is {POINTS}."),
    ],
)
def test_a_page_has_its_numbers(page: str, sentence: str) -> None:
    assert sentence in " ".join((ROOT / page).read_text(encoding="utf-8").split())

"""Numbers that the sources of thresholds quote are those of the recorded calibration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from unsmooth.diagnosis.rules.thresholds import (
    HOST,
    NO_SKIP,
    RANDOM,
    SHORT,
    SKIPLESS,
    THRESHOLDS,
    TRAINED,
    TREATED,
)

RECORD = Path(__file__).parents[2] / "results" / "calibration.json"
ROWS: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
COSINE, RANK, ENTROPY, BRANCH = "token_cosine", "effective_rank.share", "attention_entropy.share", "branch_ratio.attn"
GROUPS = {
    SKIPLESS: r"\d+ blocks, no attention skip",
    TRAINED: r"\d+ blocks, with skips, \d+ steps",
    RANDOM: r"DeiT-Ti",
    HOST: r"cct_12_3x2_32, 20 epochs",
    f"{HOST}, untrained": r"cct_12_3x2_32, random start",
    NO_SKIP: r"(trial host on CIFAR-10|demo on digits), no attention skip, \d+ (steps|epochs)$",
    SHORT: r"trial host on CIFAR-10, with skips, 200 steps",
    TREATED: r"demo on digits, no attention skip, treated",
}


def curves(group: str, curve: str) -> list[list[float]]:
    """The values by block of each model of a group."""
    found = [row[curve] for name, row in ROWS.items() if re.match(GROUPS[group], name)]
    assert found
    return [[value for value in values if value is not None] for values in found]


def every(group: str, curve: str, first: int = 0) -> list[float]:
    return [value for values in curves(group, curve) for value in values[first:]]


def span(values: Iterable[float], digits: int = 2) -> str:
    known = sorted(values)
    low, high = (f"{value:.{digits}f}" for value in (known[0], known[-1]))
    return low if low == high else f"{low} to {high}"


def rises(group: str) -> list[float]:
    return [max(v - low for v, low in zip(c, accumulate(c, min), strict=True)) for c in curves(group, COSINE)]


def falls(group: str) -> list[float]:
    return [max(1 - v / high for v, high in zip(c, accumulate(c, max), strict=True)) for c in curves(group, RANK)]


def by_depth(values: list[float]) -> str:
    a, b, c, d = (f"{value:.2f}" for value in values)
    return f"{a} and {b} (6, 12), {c} and {d} (24, 48)"


QUOTES = {
    "collapsed_similarity": [
        f"{SKIPLESS}: at least {min(every(SKIPLESS, COSINE, 1)):.2f} from block 1",
        f"{NO_SKIP}: at least {min(every(NO_SKIP, COSINE, 1)):.2f} from block 1",
        f"{SHORT}: at most {max(every(SHORT, COSINE)):.2f}",
        f"{TRAINED}: at most {max(every(TRAINED, COSINE)):.2f}",
        f"{RANDOM}: {span(every(RANDOM, COSINE))}",
        f"{HOST}: at most {max(every(HOST, COSINE)):.2f}",
        f"untrained {max(every(f'{HOST}, untrained', COSINE)):.2f}",
    ],
    "similarity_rise": [
        f"{HOST}: {rises(HOST)[0]:.2f}",
        f"{TRAINED}: {by_depth(rises(TRAINED))}; {SHORT}: {rises(SHORT)[0]:.2f}",
    ],
    "collapsed_rank_share": [
        f"{SKIPLESS}: at most {max(every(SKIPLESS, RANK, 1)):.2f} from block 1",
        f"{NO_SKIP}: at most {max(every(NO_SKIP, RANK)):.2f}, which is rank 1",
        f"{TRAINED}: at least {min(every(TRAINED, RANK)):.2f}",
        f"{RANDOM}: {span(every(RANDOM, RANK))}",
        f"{HOST}: at least {min(every(HOST, RANK)):.2f}",
    ],
    "rank_fall": [
        f"{HOST}: {falls(HOST)[0]:.2f}",
        f"{TRAINED}: {by_depth(falls(TRAINED))}; {SHORT}: {falls(SHORT)[0]:.2f}",
    ],
    "collapsed_rank": [
        f"{NO_SKIP}: {span([17 * max(curves(NO_SKIP, RANK)[0]), 32 * max(curves(NO_SKIP, RANK)[1])], 1)}"  # min(n, d)
    ],
    "far_rise": [
        f"{TRAINED}: at most {max(rises(TRAINED)):.2f}",
        f"{TREATED}: {rises(TREATED)[0]:.2f}, where rank falls by {falls(TREATED)[0]:.2f} only",
    ],
    "far_fall": [f"the largest fall of {TRAINED} is {max(falls(TRAINED)):.2f}"],
    "uniform_entropy": [f"{RANDOM}: {span(every(RANDOM, ENTROPY))}"],
    "weak_branch": [f"{RANDOM}: {span(every(RANDOM, BRANCH))}"],
    "idle_branch": [f"{RANDOM}: {span(every(RANDOM, BRANCH))}"],
    "low_pass": [f"{HOST}: at most {max(every(HOST, ENTROPY)):.2f}"],
    "idle_influence": [f"{RANDOM}: {span(every(RANDOM, 'block_influence'), 3)}"],
    "idle_cka": [f"{RANDOM}: {span(every(RANDOM, 'layer_cka'), 3)}"],
}


@pytest.mark.parametrize("name", QUOTES)
def test_the_source_quotes_the_record(name: str) -> None:
    for quote in QUOTES[name]:
        assert quote in THRESHOLDS[name].source


def test_every_number_from_the_record_is_checked() -> None:
    groups = (SKIPLESS, NO_SKIP, TREATED, SHORT, TRAINED, RANDOM, HOST)
    quoting = {name for name, t in THRESHOLDS.items() if any(group in t.source for group in groups)}
    assert quoting - {"uniform_sensitivity"} == set(QUOTES)
    assert max(every(RANDOM, "query_sensitivity")) < 0.001
    assert f"{RANDOM}: below 0.001" in THRESHOLDS["uniform_sensitivity"].source


def test_names_of_models_quote_their_accuracy() -> None:
    for group in (HOST, TREATED):
        (score,) = [row["accuracy"] for name, row in ROWS.items() if re.match(GROUPS[group], name)]
        assert f"trained to {100 * score:.1f} %" in group


def test_collapsed_models_are_separated_from_all_others() -> None:
    """Every model without the attention skip is said to be collapsed, and no model with its skips."""
    for name, row in ROWS.items():
        if "treated" not in name:
            assert (row["verdict"] == "collapsed") == ("no attention skip" in name), name

"""Rows of a reproduction: what was published and what was measured, of one arm."""

from __future__ import annotations

from unsmooth.papers.catalogue import Group
from unsmooth.report.measures import MEASURES
from unsmooth.report.reproduction_table import Row


def row_of(group: Group, at: int, spec: str) -> Row:
    """An arm's row, with what is published; the rest is measured later."""
    arm, first = group.arms[at], group.arms[0].published
    values = {name: _value(name, value, first.get(name), at) for name, value in arm.published.items()}
    for name, words in arm.gains.items():
        values.setdefault(name, _value(name, None, None, at))["published_words"] = words
    return {"name": group.names()[at], "spec": spec, "values": values, "curves": {}}


def measured(
    row: Row,
    name: str,
    value: float | None,
    *,
    sd: float | None = None,
    seeds: int | None = None,
    gain: float | None = None,
    low: float | None = None,
    high: float | None = None,
    ends: str = "interval",
) -> None:
    """Put a measured value beside the published one. `gain` is to the first arm: a difference, or a ratio.

    `low` and `high` are the ends of its 95 % interval, or quartiles over repeated timing, which prove nothing.
    """
    if value is None:
        return
    factor = MEASURES[name].factor
    scale = factor if MEASURES[name].how == "difference" else 1.0
    kept = row["values"].setdefault(name, _value(name, None, None, 0))
    kept |= {
        "measured": value * factor, "sd": _times(sd, factor), "seeds": seeds,
        "gain": _times(gain, scale), "low": _times(low, scale), "high": _times(high, scale), "ends": ends,
    }  # fmt: skip


def _value(name: str, published: float | None, first: float | None, at: int) -> Row:
    gain = None
    if at and published is not None and first:
        gain = published / first if MEASURES[name].how == "ratio" else published - first
    return {
        "published": published, "published_gain": gain, "measured": None, "sd": None, "seeds": None,
        "gain": None, "low": None, "high": None, "ends": "interval",
    }  # fmt: skip


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor

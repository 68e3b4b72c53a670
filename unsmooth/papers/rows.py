"""Rows of a reproduction: published and measured values of one arm."""

from __future__ import annotations

from dataclasses import replace

from unsmooth.papers.catalogue import PublishedArm, PublishedGroup
from unsmooth.report.metrics import METRICS
from unsmooth.results.reproduction import ArmResult, MeasuredValue
from unsmooth.spec import ModelSpec


def published_row(group: PublishedGroup, index: int, spec: ModelSpec) -> ArmResult:
    """The row of an arm with its published values. Measured values are added later."""
    return _row(group, group.models[index], group.names()[index], str(spec))


def with_printed_rows(group: PublishedGroup, rows: list[ArmResult]) -> list[ArmResult]:
    """Rows of the models of a group, and between them, in the order of the paper, printed rows without a model."""
    measured = iter(rows)
    return [_row(group, arm, arm.name, "") if arm.why else next(measured) for arm in group.arms]


def _row(group: PublishedGroup, arm: PublishedArm, row_name: str, spec: str) -> ArmResult:
    first = group.models[0] if group.models else None
    base = first.published if first is not None and arm is not first and not arm.why else {}
    values = {
        name: MeasuredValue(value, _published_gain(name, value, base.get(name)))
        for name, value in arm.published.items()
    }
    for name, text in arm.gains.items():
        values.setdefault(name, MeasuredValue(None, None)).published_words = text
    return ArmResult(name=row_name, spec=spec, values=values, curves={}, why=arm.why or None)


def _published_gain(name: str, value: float, first: float | None) -> float | None:
    if not first:
        return None
    return value / first if METRICS[name].comparison == "ratio" else value - first


def add_measured(
    row: ArmResult,
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
    """Add a measured value to a row, in the unit of its metric.

    `gain` is relative to the first arm: a difference or a ratio. `low` and `high` are the ends of its 95 % interval, or
    quartiles over timing rounds (`ends="quartiles"`), which are no evidence of a difference.
    """
    if value is None:
        return
    metric = METRICS[name]
    scale = metric.factor if metric.comparison == "difference" else 1.0
    row.values[name] = replace(
        row.values.get(name, MeasuredValue(None, None)), measured=value * metric.factor, sd=_scaled(sd, metric.factor),
        seeds=seeds, gain=_scaled(gain, scale), low=_scaled(low, scale), high=_scaled(high, scale), ends=ends,
    )  # fmt: skip


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor

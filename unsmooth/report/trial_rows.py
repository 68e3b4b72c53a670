"""The tables of a trial's page: one row per arm, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unsmooth.report import formatting as words
from unsmooth.report.trial_values import decimals, points, text_of, why_no_difference

if TYPE_CHECKING:
    from unsmooth.results.trial import Arm, Difference, SeedSpread, Speed, Trial

MARGIN = 4.0  # per cent of the forest plot's width on each side, for the tick labels


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and its second line."""

    text: str
    more: str = ""


@dataclass(frozen=True)
class Mark:
    """A position in the forest plot, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Interval:
    """The positions of a difference, its interval and its seeds in the forest plot."""

    mean: float
    low: float
    high: float
    shown: bool
    seeds: list[Mark]


@dataclass(frozen=True)
class ForestRow:
    """The difference of an arm; None for the first arm and for one without a difference."""

    index: int
    difference: Interval | None
    text: str


@dataclass(frozen=True)
class Forest:
    """The forest plot: its rows, the position of zero, whether there is a difference, and its axis."""

    rows: list[ForestRow]
    zero: float
    any: bool
    ticks: list[Mark]


@dataclass(frozen=True)
class ArmRow:
    """Accuracy, size and speed of an arm, and a sentence about its failed runs."""

    index: int
    top1: Cell
    top5: Cell
    loss: Cell
    failed: str
    parameters: Cell
    flops: Cell
    training: Cell
    inference: Cell


@dataclass(frozen=True)
class ScoreCell:
    """The score of an arm under one condition, and its difference from the first arm."""

    name: str
    text: str
    more: str
    difference: str
    shown: bool


@dataclass(frozen=True)
class ScoreRow:
    """The scores of an arm, one cell per condition."""

    index: int
    cells: list[ScoreCell]


@dataclass(frozen=True)
class ScoreTable:
    """Conditions, such as kinds of perturbed images or blocks, and one row per arm."""

    title: str
    conditions: list[str]
    rows: list[ScoreRow]


def forest(trial: Trial) -> Forest:
    """The forest plot: paired differences in points. Positions are percentages of the plot's width."""
    differences = [points(arm.difference, decimals(trial)) for arm in trial.arms]
    ends = [0.0, *(v for d in differences if d for v in (d.low, d.high, *d.by_seed) if v is not None)]
    ticks = scale(min(ends), max(ends))
    low, high = ticks[0], ticks[-1]

    def position(x: float) -> float:
        return round(MARGIN + (100 - 2 * MARGIN) * (x - low) / (high - low), 2)

    tick_decimals = next((n for n in (0, 1) if all(abs(t * 10**n - round(t * 10**n)) < 1e-9 for t in ticks)), 2)
    seeds, digits = trial.seeds, decimals(trial)
    rows = []
    for i, (arm, d) in enumerate(zip(trial.arms, differences, strict=True)):
        if d is None:
            rows.append(ForestRow(i, None, "" if i == 0 else why_no_difference(trial, arm)))
            continue
        paired = len(d.by_seed) == len(seeds)
        marks = [
            Mark(position(v), f"{f'seed {seeds[s]}: ' if paired else ''}{words.fixed(v, digits, sign=True)} points")
            for s, v in enumerate(d.by_seed) if v is not None
        ]  # fmt: skip
        interval = Interval(position(d.mean), position(d.low), position(d.high), d.decided, marks)
        rows.append(ForestRow(i, interval, d.text + correction(arm.difference)))
    axis = [Mark(position(t), words.fixed(t, tick_decimals, sign=True) if t else "0") for t in ticks]
    return Forest(rows, position(0.0), any(differences), axis)


def correction(difference: Difference | None) -> str:
    """The p-values of a difference as text, if it is corrected for several comparisons; else ""."""
    if difference is None or difference.p_holm is None:
        return ""
    kept = "" if difference.survives or not difference.shown else "; not shown after correction"
    return f"{kept}; p = {difference.p:.2g}, Holm {difference.p_holm:.2g}"


def scale(low: float, high: float) -> list[float]:
    """A few round numbers that cover a range."""
    from matplotlib.ticker import MaxNLocator

    if high - low < 1e-9:
        low, high = low - 1, high + 1
    return [round(float(t), 9) for t in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]


def results(trial: Trial) -> list[ArmRow]:
    """One row per arm: accuracy with its spread over seeds, size and speed."""
    first, digits = trial.arms[0], decimals(trial)
    unit = flop_unit(trial)[1]
    return [
        ArmRow(
            i, percent_cell(arm.top1, digits, _missing(arm)), percent_cell(arm.top5, digits), _cell(arm.loss, 1, 3),
            _failures(arm), Cell(words.thousands(arm.parameters), _added(arm, first) if i else ""),
            _flops(arm, first if i else None, unit), _throughput(arm.training), _throughput(arm.inference),
        )
        for i, arm in enumerate(trial.arms)
    ]  # fmt: skip


def robustness(trial: Trial) -> ScoreTable:
    """Accuracy of every arm on every kind of perturbed images."""
    conditions = list(dict.fromkeys(name for arm in trial.arms for name in arm.robustness))
    by_arm = [
        [
            (None, None) if score is None else (score.top1, score.difference)
            for score in (arm.robustness.get(name) for name in conditions)
        ]
        for arm in trial.arms
    ]
    return score_table(trial, "Accuracy on perturbed images", conditions, by_arm, decimals(trial))


def score_table(
    trial: Trial, title: str, conditions: list[str],
    by_arm: Sequence[Sequence[tuple[SeedSpread | None, Difference | None]]], digits: int,
) -> ScoreTable:  # fmt: skip
    """A table of scores, and differences from the first arm, by arm and condition."""
    rows = []
    for i, (arm, scores) in enumerate(zip(trial.arms, by_arm, strict=True)):
        cells = []
        for name, (score, difference) in zip(conditions, scores, strict=True):
            cell = percent_cell(score, digits, _missing(arm))
            said, shown = ("", False) if difference is None else (text_of(difference, digits), difference.shown)
            cells.append(ScoreCell(name, cell.text, cell.more, said, shown))
        rows.append(ScoreRow(i, cells))
    return ScoreTable(title, conditions, rows)


def percent(fraction: float | None, digits: int) -> str:
    return "–" if fraction is None else f"{words.fixed(100 * fraction, digits)} %"


def percent_cell(spread: SeedSpread | None, digits: int, otherwise: str = "–") -> Cell:
    """A fraction in per cent with its spread over seeds, and the value of each seed."""
    cell = _cell(spread, 100, digits, otherwise)
    return cell if spread is None or spread.mean is None else replace(cell, text=f"{cell.text} %")


def _cell(spread: SeedSpread | None, factor: float, digits: int, otherwise: str = "–") -> Cell:
    if spread is None or spread.mean is None:
        return Cell(otherwise)

    def text(value: float | None) -> str:
        return "failed" if value is None else words.fixed(factor * value, digits)

    deviation = "" if spread.sd is None else f" ± {text(spread.sd)}"
    seeds = ", ".join(map(text, spread.runs)) if len(spread.runs) > 1 else ""
    return Cell(text(spread.mean) + deviation, seeds)


def _missing(arm: Arm) -> str:
    """The text of a cell without a number."""
    return "–" if arm.finished_runs else "failed"


def _failures(arm: Arm) -> str:
    """A sentence about the failed runs of an arm, or ""."""
    failed = arm.failed_runs
    if not failed:
        return ""
    reasons = "; ".join(f"seed {run.seed}: {run.failed}" for run in failed)
    rest = "; values are from the other runs" if arm.finished_runs else ""
    return f"{len(failed)} of {len(arm.runs)} runs failed ({reasons}){rest}"


def _added(arm: Arm, first: Arm) -> str:
    """Parameters relative to the first arm."""
    if arm.parameters is None or first.parameters is None:
        return ""
    added = arm.parameters - first.parameters
    return "same" if added == 0 else ("+" if added > 0 else "−") + words.thousands(abs(added))


def flop_unit(trial: Trial) -> tuple[str, float]:
    """GFLOPs, or MFLOPs if all models are small."""
    most = max((arm.flops for arm in trial.arms if arm.flops is not None), default=0)
    return ("GFLOPs", 1e9) if most >= 1e8 else ("MFLOPs", 1e6)


def _flops(arm: Arm, first: Arm | None, unit: float) -> Cell:
    if arm.flops is None:
        return Cell("–")
    if first is None or not first.flops:
        change = ""
    elif arm.flops == first.flops:
        change = "same"
    else:
        share = 100 * (arm.flops / first.flops - 1)
        change = f"{words.fixed(share, 1, sign=True)} %" if abs(share) >= 0.05 else "almost the same"
    return Cell(words.show(arm.flops / unit), change)


def _throughput(speed: Speed | None) -> Cell:
    if speed is None:
        return Cell("–")
    rate = speed.images_per_second
    low, median, high = (words.fixed(x, 2) for x in (speed.ratio.low, speed.ratio.median, speed.ratio.high))
    return Cell(
        median + (f" ({low}–{high})" if low != high else ""),
        f"{words.thousands(rate) if rate >= 100 else words.show(rate)} images/s",
    )

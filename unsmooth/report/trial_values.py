"""Values of a trial for its page and figures."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from unsmooth.report.formatting import number
from unsmooth.report.values import merged

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.trial import Arm, Difference, Speed, Trial

FEW = 4  # arms whose bands can be told apart in one chart
CURVES = (
    ("val_top1", "Validation top-1", "%", 100),
    ("val_loss", "Validation loss", "", 1),
    ("train_loss", "Training loss", "", 1),
)


@dataclass(frozen=True)
class Range:
    """A mean with its range; all are None if there are no values."""

    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class RunCurve:
    """A learning curve of one run, at the epochs of its arm."""

    seed: int
    failed: bool
    values: list[float | None]


@dataclass(frozen=True)
class ArmCurve:
    """A learning curve of an arm: mean and range over seeds, and each run."""

    epochs: list[int]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]
    runs: list[RunCurve]


@dataclass(frozen=True)
class LearningChart:
    """Learning curves by arm; None for an arm without values."""

    key: str
    title: str
    unit: str
    by: list[ArmCurve | None]


@dataclass(frozen=True)
class VitalTable:
    """A vital of an arm by epoch and block: mean and range over seeds."""

    epochs: list[int]
    blocks: int
    mean: list[list[float | None]]
    low: list[list[float | None]]
    high: list[list[float | None]]


@dataclass(frozen=True)
class VitalChart:
    """A vital during training, with the range of its means, by arm; None for an arm without values."""

    key: str
    title: str
    low: float
    high: float
    by: list[VitalTable | None]


@dataclass(frozen=True)
class CostChart:
    """A cost by arm; `ratio` if it is relative to the first arm."""

    key: str
    title: str
    ratio: bool
    by: list[Range | None]


@dataclass(frozen=True)
class Costs:
    """Accuracy in per cent by arm, and the costs that were measured."""

    accuracy: list[Range | None]
    against: list[CostChart]


def as_diagnoses(trial: Trial) -> list[Diagnosis | None]:
    """The diagnosis of each arm; None for an arm that was not diagnosed."""
    return [arm.diagnosed for arm in trial.arms]


def decimals(trial: Trial) -> int:
    """Decimals of a percentage: two if there are at least ten thousand validation images."""
    return 2 if trial.data.val >= 10_000 else 1


@dataclass(frozen=True)
class PointDifference:
    """A difference in percentage points."""

    mean: float
    low: float
    high: float
    by_seed: list[float | None]
    shown: bool
    decided: bool
    text: str


def signed_points(fraction: float, digits: int = 1) -> str:
    """A difference of fractions in points, with its sign."""
    return f"{100 * fraction:+.{digits}f}".replace("-", "−")


def difference_text(mean: float, low: float, high: float, shown: bool, digits: int = 1) -> str:
    """A difference of fractions with its interval, also where the interval covers zero.

    Example:
        >>> difference_text(0.004, -0.011, 0.019, shown=False)
        '+0.4 points (−1.1 to +1.9 points), no difference shown'
    """
    mean_text, low_text, high_text = (signed_points(value, digits) for value in (mean, low, high))
    return f"{mean_text} points ({low_text} to {high_text} points){'' if shown else ', no difference shown'}"


def text_of(difference: Difference, digits: int) -> str:
    """The text of a difference, from its numbers: older files have the difference only where it is shown."""
    return difference_text(difference.mean, difference.low, difference.high, difference.shown, digits)


def points(difference: Difference | None, digits: int) -> PointDifference | None:
    """A difference of fractions in percentage points."""
    if difference is None:
        return None
    by_seed = [None if value is None else 100 * value for value in difference.by_seed]
    mean, low, high = (100 * value for value in (difference.mean, difference.low, difference.high))
    return PointDifference(mean, low, high, by_seed, difference.shown, difference.decided, text_of(difference, digits))


def why_no_difference(trial: Trial, arm: Arm) -> str:
    """The reason why an arm has no difference."""
    first = trial.arms[0]
    for name, candidate in (("", arm), (f"{first.name} ", first)):
        if not candidate.finished_runs:
            reasons = dict.fromkeys(str(run.failed) for run in candidate.runs)
            if not reasons:
                return f"{name}was not run"
            return f"{name}failed with {_every(len(candidate.runs))}: {'; '.join(reasons)}"
    return f"no seed finished by both {arm.name} and {first.name}"


def _every(seeds: int) -> str:
    return {1: "its only seed", 2: "both seeds"}.get(seeds, f"all {seeds} seeds")


def learning(trial: Trial) -> list[LearningChart]:
    """Learning curves by epoch: per arm, the mean and range over seeds, and each run.

    A chart of single points is left out if another one has a curve.
    """
    charts = []
    for key, title, unit, scale in CURVES:
        by_arm = [_learning_curve(arm, key, scale) for arm in trial.arms]
        if any(by_arm):
            charts.append(LearningChart(key, title, unit, by_arm))
    return [chart for chart in charts if any(arm and len(arm.epochs) > 1 for arm in chart.by)] or charts


def _learning_curve(arm: Arm, key: str, scale: int) -> ArmCurve | None:
    measured = []
    for run in arm.runs:
        values = {line.epoch: v * scale for line in run.epochs if (v := number(line.metrics.get(key))) is not None}
        if values and key == "val_top1" and arm.start is not None:
            values[0] = scale * arm.start.top1
        if values:
            measured.append((run, values))
    if not measured:
        return None
    epochs = sorted({epoch for _, values in measured for epoch in values})
    ranges = [value_range([values.get(epoch) for run, values in measured if not run.failed]) for epoch in epochs]
    return ArmCurve(
        epochs, [number(r.mean) for r in ranges], [number(r.low) for r in ranges], [number(r.high) for r in ranges],
        [
            RunCurve(run.seed, bool(run.failed), [number(values.get(epoch)) for epoch in epochs])
            for run, values in measured
        ],
    )  # fmt: skip


def value_range(values: list[float | None]) -> Range:
    """Mean, minimum and maximum of the values that are not None."""
    known = [value for value in values if value is not None]
    return Range(fmean(known), min(known), max(known)) if known else Range(None, None, None)


def during(trial: Trial) -> list[VitalChart]:
    """Vitals during training: per arm, a table of epochs × blocks with the mean and range over seeds."""
    described = merged(as_diagnoses(trial))
    measured = [line.vitals for arm in trial.arms for run in arm.runs for line in run.epochs]
    charts = []
    for key in dict.fromkeys(key for vitals in measured for key in vitals):
        by_arm = [_vital_during_training(arm, key) for arm in trial.arms]
        values = [v for table in by_arm if table for column in table.mean for v in column if v is not None]
        if values:
            title = described[key].title if key in described else key.replace("_", " ")
            charts.append(VitalChart(key, title, min(values), max(values), by_arm))
    return charts


def _vital_during_training(arm: Arm, key: str) -> VitalTable | None:
    by_epoch: dict[int, list[list[Any]]] = {}
    for run in arm.finished_runs or arm.runs:
        for line in run.epochs:
            if values := line.vitals.get(key):
                by_epoch.setdefault(line.epoch, []).append(values)
    if not by_epoch:
        return None
    epochs = sorted(by_epoch)
    blocks = max(len(values) for runs in by_epoch.values() for values in runs)

    def over_seeds(epoch: int, block: int) -> Range:
        return value_range([number(values[block]) for values in by_epoch[epoch] if block < len(values)])

    table = [[over_seeds(epoch, block) for block in range(blocks)] for epoch in epochs]
    return VitalTable(
        epochs, blocks, [[number(r.mean) for r in row] for row in table],
        [[number(r.low) for r in row] for row in table], [[number(r.high) for r in row] for row in table],
    )  # fmt: skip


def cost(trial: Trial) -> Costs:
    """Accuracy of each arm with its range over seeds, and every cost that was measured."""
    accuracy = [_accuracy(arm) for arm in trial.arms]
    charts = (
        CostChart("inference", "inference throughput", True, [_ratio(arm.inference) for arm in trial.arms]),
        CostChart("training", "training throughput", True, [_ratio(arm.training) for arm in trial.arms]),
        CostChart("flops", "FLOPs per image", False, [_exact(arm.flops) for arm in trial.arms]),
        CostChart("parameters", "parameters", False, [_exact(arm.parameters) for arm in trial.arms]),
    )
    against = [chart for chart in charts if any(x and y for x, y in zip(chart.by, accuracy, strict=True))]
    return Costs(accuracy, against)


def _accuracy(arm: Arm) -> Range | None:
    """Top-1 in per cent, with its range over seeds."""
    runs = [value for value in arm.top1.runs if value is not None]
    if arm.top1.mean is None or not runs:
        return None
    return Range(number(100 * arm.top1.mean), number(100 * min(runs)), number(100 * max(runs)))


def _ratio(speed: Speed | None) -> Range | None:
    """Throughput relative to the first arm, with quartiles."""
    if speed is None:
        return None
    return Range(number(speed.ratio.median), number(speed.ratio.low), number(speed.ratio.high))


def _exact(value: int | None) -> Range | None:
    x = number(value, 6)
    return None if x is None else Range(x, x, x)

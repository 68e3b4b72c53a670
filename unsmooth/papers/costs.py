"""Tables of cost: every group is a `bench`."""

from __future__ import annotations

from unsmooth.evaluation.bench import bench
from unsmooth.papers.catalogue import Experiment
from unsmooth.papers.counts import add_counts
from unsmooth.papers.request import RunRequest
from unsmooth.papers.rows import add_measured, published_row, with_printed_rows
from unsmooth.results.bench import BenchRow, Throughput
from unsmooth.results.reproduction import ArmResult, GroupResult
from unsmooth.results.trial import Speed

TIMED = {"images_per_second": "inference", "training_speed": "training", "days": "training"}
ENERGY = {"energy": "fp32", "energy_int8": "int8"}
SECONDS_PER_DAY = 86400
ROUNDS = {True: 5, False: 15}  # small or not


def run_costs(experiment: Experiment, request: RunRequest) -> tuple[list[GroupResult], str]:
    """Measure the cost of every group. Nothing is trained, so small runs may use hosts of published size."""
    groups = []
    for group in request.groups(experiment):
        request.on_stage(f"{experiment.id}: {group.name}")
        specs = group.specs(request.small)
        timed = {TIMED[name] for name in experiment.measures if name in TIMED}
        costs = bench(
            specs, throughput=bool(timed), training="training" in timed, rounds=ROUNDS[request.small],
            batch_size=request.scale(experiment).batch_size, device=request.device or None,
        )  # fmt: skip
        rows = []
        for i, (spec, cost) in enumerate(zip(specs, costs.rows, strict=True)):
            row = published_row(group, i, spec)
            for name in experiment.measures:
                _add_cost(row, name, cost, first=i == 0)
            add_counts(row, experiment, group, group.models[i])
            rows.append(row)
        rows = with_printed_rows(group, rows)
        assumptions = costs.assumptions if set(ENERGY) & set(experiment.measures) else []
        groups.append(GroupResult(name=group.name, rows=rows, assumptions=assumptions))
    return groups, "no images: cost only"


def _add_cost(row: ArmResult, name: str, cost: BenchRow, first: bool) -> None:
    if name in ENERGY:
        energy = cost.energy[ENERGY[name]]
        add_measured(row, name, energy.millijoules, gain=None if first else energy.ratio)
    elif name in TIMED:
        add_speed(row, name, cost.inference if TIMED[name] == "inference" else cost.training, first)


def add_speed(row: ArmResult, name: str, speed: Throughput | Speed | None, first: bool) -> None:
    """Add images per second, or days per million images, and the ratio to the first arm with quartiles."""
    if speed is None:
        return
    value, ratio = speed.images_per_second, speed.ratio
    gain, low, high = ratio.median, ratio.low, ratio.high
    if name == "days":
        value, gain, low, high = 1e6 / value / SECONDS_PER_DAY, 1 / ratio.median, 1 / ratio.high, 1 / ratio.low
    if first:
        add_measured(row, name, value, ends="quartiles")
    else:
        add_measured(row, name, value, gain=gain, low=low, high=high, ends="quartiles")

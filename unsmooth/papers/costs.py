"""Tables of cost: every group is a run of `unsmooth bench`."""

from __future__ import annotations

from typing import Any

from unsmooth.evaluation.bench import bench
from unsmooth.papers.catalogue import Experiment
from unsmooth.papers.request import RunRequest
from unsmooth.papers.rows import measured, row_of
from unsmooth.report.reproduction_table import Row

TIMED = {"images_per_second": "inference", "training_speed": "training", "days": "training"}
ENERGY = {"energy": "fp32", "energy_int8": "int8"}
DAY = 86400
ROUNDS = {True: 5, False: 15}  # small or not


def run_costs(experiment: Experiment, request: RunRequest) -> tuple[list[Row], str]:
    """The groups with their rows; nothing is trained, so hosts can have their published size also with --small."""
    groups = []
    for group in request.groups(experiment):
        request.on_stage(f"{experiment.id}: {group.name}")
        specs = group.specs(request.small)
        timed = {TIMED[name] for name in experiment.measures if name in TIMED}
        found = bench(
            specs, throughput=bool(timed), training="training" in timed, rounds=ROUNDS[request.small],
            batch_size=request.scale(experiment).batch_size, device=request.device or None,
        ).data  # fmt: skip
        rows = []
        for at, (spec, cost) in enumerate(zip(specs, found["rows"], strict=True)):
            row = row_of(group, at, spec)
            for name in experiment.measures:
                _measure(row, name, cost, at)
            rows.append(row)
        assumed = found["assumptions"] if set(ENERGY) & set(experiment.measures) else []
        groups.append({"name": group.name, "rows": rows, "assumptions": assumed})
    return groups, "no images: cost only"


def _measure(row: Row, name: str, cost: dict[str, Any], at: int) -> None:
    if name == "parameters":
        measured(row, name, cost["parameters"])
    elif name == "macs":
        measured(row, name, cost["flops"] / 2)
    elif name in ENERGY:
        found = cost["energy"][ENERGY[name]]
        measured(row, name, found["millijoules"], gain=found["ratio"] if at else None)
    elif name in TIMED:
        put_speed(row, name, cost[TIMED[name]], at)


def put_speed(row: Row, name: str, timed: dict[str, Any], at: int) -> None:
    """Images a second, or the days of a million images, and their ratio to the first arm with quartiles."""
    speed, ratio = timed["images_per_second"], timed["ratio"]
    value, gains = speed, (ratio["median"], ratio["low"], ratio["high"])
    if name == "days":
        value, gains = 1e6 / speed / DAY, (1 / ratio["median"], 1 / ratio["high"], 1 / ratio["low"])
    gain, low, high = gains if at else (None, None, None)
    measured(row, name, value, gain=gain, low=low, high=high, ends="quartiles")

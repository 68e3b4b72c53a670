"""Numbers out of a trial, as its page and its figures both want them."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import TYPE_CHECKING, Any

from unsmooth.report.formatting import number
from unsmooth.report.values import merged

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis

Trial = dict[str, Any]
Arm = dict[str, Any]
Spread = dict[str, float | None]
FEW = 4  # arms whose bands can be told apart in one chart
CURVES = (
    ("val_top1", "Validation top-1", "%", 100),
    ("val_loss", "Validation loss", "", 1),
    ("train_loss", "Training loss", "", 1),
)
COSTS = (
    ("inference", "inference throughput"),
    ("training", "training throughput"),
    ("flops", "operations for one image"),
    ("parameters", "parameters"),
)


def as_diagnoses(trial: Trial) -> list[Diagnosis | None]:
    """The diagnosis of each arm."""
    return [arm.get("diagnosis") for arm in trial["arms"]]


def finished(arm: Arm) -> list[dict[str, Any]]:
    """The runs that an arm's numbers stand on."""
    return [run for run in arm["runs"] if not run.get("failed")]


def places(trial: Trial) -> int:
    """Decimals of a percentage: the second means something from ten thousand images on."""
    return 2 if trial["data"]["val"] >= 10_000 else 1


def mean_of(arm: Arm) -> float | None:
    """Top-1 of an arm in per cent."""
    mean = number((arm.get("top1") or {}).get("mean"), 12)
    return None if mean is None else 100 * mean


def points(difference: Any) -> dict[str, Any] | None:
    """A difference of shares in points: its mean, its interval and the difference of each seed."""
    if not difference or any(number(difference.get(k)) is None for k in ("mean", "low", "high")):
        return None
    by_seed = [None if (x := number(v, 12)) is None else 100 * x for v in difference.get("by_seed") or []]
    interval = {k: 100 * difference[k] for k in ("mean", "low", "high")}
    return interval | {"by_seed": by_seed, "shown": bool(difference["shown"]), "text": str(difference["text"])}


def why_no_difference(trial: Trial, arm: Arm) -> str:
    """What stands where a difference is missing."""
    first = trial["arms"][0]
    for who, one in (("", arm), (f"{first['name']} ", first)):
        if not finished(one):
            reasons = dict.fromkeys(str(run["failed"]) for run in one["runs"])
            return (
                f"{who}failed in {_every(len(one['runs']))}: {'; '.join(reasons)}" if reasons else f"{who}was not run"
            )
    return f"no seed in which both it and {first['name']} came to an end"


def _every(seeds: int) -> str:
    return {1: "its only seed", 2: "both seeds"}.get(seeds, f"all {seeds} seeds")


def learning(trial: Trial) -> list[dict[str, Any]]:
    """Curves of training by epoch: of each arm the mean and the range over its seeds, and each run for itself."""
    out = []
    for key, title, unit, scale in CURVES:
        by = [_learned(arm, key, scale) for arm in trial["arms"]]
        if any(by):
            out.append({"key": key, "title": title, "unit": unit, "by": by})
    return out


def _learned(arm: Arm, key: str, scale: int) -> dict[str, Any] | None:
    runs = []
    for run in arm["runs"]:
        values = {int(e["epoch"]): v * scale for e in run.get("epochs") or [] if (v := number(e.get(key))) is not None}
        if values:
            runs.append({"seed": run["seed"], "failed": bool(run.get("failed")), "values": values})
    if not runs:
        return None
    epochs = sorted({epoch for run in runs for epoch in run["values"]})
    spreads = [spread([r["values"].get(e) for r in runs if not r["failed"]]) for e in epochs]
    columns = {k: [number(s[k]) for s in spreads] for k in ("mean", "low", "high")}
    by_seed = [run | {"values": [number(run["values"].get(e)) for e in epochs]} for run in runs]
    return {"epochs": epochs, **columns, "runs": by_seed}


def spread(values: list[float | None]) -> Spread:
    """Mean and range of the values that are there."""
    there = [v for v in values if v is not None]
    return (
        {"mean": fmean(there), "low": min(there), "high": max(there)}
        if there
        else dict.fromkeys(("mean", "low", "high"))
    )


def during(trial: Trial) -> list[dict[str, Any]]:
    """Vitals that were followed: of each arm a table of epochs × blocks, mean and range over its seeds."""
    known = merged(as_diagnoses(trial))
    looks = [
        e["vitals"] for arm in trial["arms"] for run in arm["runs"] for e in run.get("epochs") or [] if e.get("vitals")
    ]
    out = []
    for key in dict.fromkeys(key for look in looks for key in look):
        by = [_followed(arm, key) for arm in trial["arms"]]
        seen = [v for model in by if model for column in model["mean"] for v in column if v is not None]
        if seen:
            title = known[key].title if key in known else key.replace("_", " ")
            out.append({"key": key, "title": title, "low": min(seen), "high": max(seen), "by": by})
    return out


def _followed(arm: Arm, key: str) -> dict[str, Any] | None:
    looks: dict[int, list[list[Any]]] = {}
    for run in finished(arm) or arm["runs"]:
        for epoch in run.get("epochs") or []:
            values = (epoch.get("vitals") or {}).get(key)
            if values:
                looks.setdefault(int(epoch["epoch"]), []).append(values)
    if not looks:
        return None
    epochs = sorted(looks)
    blocks = max(len(values) for runs in looks.values() for values in runs)

    def at(epoch: int, block: int) -> Spread:
        return spread([number(values[block]) for values in looks[epoch] if block < len(values)])

    tables = [[at(epoch, block) for block in range(blocks)] for epoch in epochs]
    columns = {k: [[number(s[k]) for s in row] for row in tables] for k in ("mean", "low", "high")}
    return {"epochs": epochs, "blocks": blocks, **columns}


def cost(trial: Trial) -> dict[str, Any]:
    """Accuracy of each arm with its range over seeds, against whatever of its costs was measured."""
    runs = [
        [v for run in (a.get("top1") or {}).get("runs") or [] if (v := number(run)) is not None] for a in trial["arms"]
    ]
    accuracy = [
        None if (mean := mean_of(arm)) is None or not own
        else {"mean": number(mean), "low": number(100 * min(own)), "high": number(100 * max(own))}
        for arm, own in zip(trial["arms"], runs, strict=True)
    ]  # fmt: skip
    readers: dict[str, Callable[[Arm], Spread | None]] = {
        "inference": lambda arm: _ratio(arm.get("inference")), "training": lambda arm: _ratio(arm.get("training")),
        "flops": lambda arm: _exactly(arm.get("flops")), "parameters": lambda arm: _exactly(arm.get("parameters")),
    }  # fmt: skip
    against = []
    for key, title in COSTS:
        by = [readers[key](arm) for arm in trial["arms"]]
        if any(x and y for x, y in zip(by, accuracy, strict=True)):
            against.append({"key": key, "title": title, "ratio": key in ("inference", "training"), "by": by})
    return {"accuracy": accuracy, "against": against}


def _ratio(measured: Any) -> Spread | None:
    """Throughput as a multiple of the first arm's, with its quartiles."""
    ratio = (measured or {}).get("ratio") or {}
    median = number(ratio.get("median"))
    if median is None:
        return None
    low, high = number(ratio.get("low")), number(ratio.get("high"))
    return {"mean": median, "low": median if low is None else low, "high": median if high is None else high}


def _exactly(value: Any) -> Spread | None:
    x = number(value, 6)
    return None if x is None else {"mean": x, "low": x, "high": x}

"""The tables of a trial's page: what stands in a row of an arm, as text."""

from __future__ import annotations

from typing import Any

from matplotlib.ticker import MaxNLocator

from unsmooth.report import formatting as words
from unsmooth.report.trial_values import Arm, Trial, finished, places, points, why_no_difference

MARGIN = 4.0  # per cent of the forest's width to both sides, for the numbers under its ticks


def forest(trial: Trial) -> dict[str, Any]:
    """Paired differences in points on one scale; places are per cent of the plot's width."""
    found = [points(arm.get("difference")) for arm in trial["arms"]]
    ends = [0.0, *(v for p in found if p for v in (p["low"], p["high"], *p["by_seed"]) if v is not None)]
    ticks = scale(min(ends), max(ends))
    low, high = ticks[0], ticks[-1]

    def place(x: float) -> float:
        return round(MARGIN + (100 - 2 * MARGIN) * (x - low) / (high - low), 2)

    decimals = (
        0 if all(t == round(t) for t in ticks) else 1 if all(abs(t * 10 - round(t * 10)) < 1e-9 for t in ticks) else 2
    )
    seeds, digits = trial["seeds"], places(trial)
    rows = []
    for i, (arm, p) in enumerate(zip(trial["arms"], found, strict=True)):
        row: dict[str, Any] = {"index": i, "difference": None, "text": "" if i == 0 else why_no_difference(trial, arm)}
        if p is not None:
            paired = len(p["by_seed"]) == len(seeds)
            row |= {
                "text": p["text"],
                "difference": {
                    "mean": place(p["mean"]), "low": place(p["low"]), "high": place(p["high"]), "shown": p["shown"],
                    "seeds": [
                        {"at": place(v), "text": (f"seed {seeds[s]}: " if paired else "")
                         + f"{words.fixed(v, digits, sign=True)} points"}
                        for s, v in enumerate(p["by_seed"]) if v is not None
                    ],
                },
            }  # fmt: skip
        rows.append(row)
    return {
        "rows": rows, "zero": place(0.0), "any": any(found),
        "ticks": [{"at": place(t), "text": words.fixed(t, decimals, sign=t != 0) if t else "0"} for t in ticks],
    }  # fmt: skip


def scale(low: float, high: float) -> list[float]:
    """A few round numbers that hold a range; it may be empty."""
    if high - low < 1e-9:
        low, high = low - 1, high + 1
    return [round(float(t), 9) for t in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]


def results(trial: Trial) -> list[dict[str, Any]]:
    """One row an arm: accuracy with its spread over seeds, size and speed."""
    first, digits = trial["arms"][0], places(trial)
    unit = flop_unit(trial)
    return [
        {
            "index": i, "top1": percent(arm.get("top1"), digits, _missing(arm)),
            "top5": percent(arm.get("top5"), digits),
            "loss": _plain(arm.get("loss")), "failed": _failed(arm),
            "parameters": {"text": words.thousands(arm.get("parameters")), "more": _more(arm, first, i)},
            "flops": _flops(arm, first, unit[1], i),
            "training": _throughput(arm.get("training")), "inference": _throughput(arm.get("inference")),
        }
        for i, arm in enumerate(trial["arms"])
    ]  # fmt: skip


def robustness(trial: Trial) -> dict[str, Any]:
    """Accuracy of every arm under every condition that any of them was tried in."""
    digits = places(trial)
    conditions = list(dict.fromkeys(name for arm in trial["arms"] for name in arm.get("robustness") or {}))
    rows = []
    for i, arm in enumerate(trial["arms"]):
        cells = []
        for name in conditions:
            entry = (arm.get("robustness") or {}).get(name) or {}
            difference = entry.get("difference") or {}
            cells.append({
                "name": name, **percent(entry.get("top1"), digits, _missing(arm)),
                "difference": str(difference.get("text") or ""), "shown": bool(difference.get("shown")),
            })  # fmt: skip
        rows.append({"index": i, "cells": cells})
    return {"conditions": conditions, "rows": rows}


def percent(stat: Any, digits: int, otherwise: str = "–") -> dict[str, str]:
    """A share with its spread over seeds, in per cent, and the share of each seed."""
    if not stat or words.number(stat.get("mean")) is None:
        return {"text": otherwise, "more": ""}
    sd = words.number(stat.get("sd"), 12)
    text = words.fixed(100 * stat["mean"], digits) + ("" if sd is None else f" ± {words.fixed(100 * sd, digits)}")
    runs = stat.get("runs") or []
    seeds = ", ".join("failed" if words.number(v) is None else words.fixed(100 * v, digits) for v in runs)
    return {"text": f"{text} %", "more": seeds if len(runs) > 1 else ""}


def _plain(stat: Any) -> dict[str, str]:
    if not stat or words.number(stat.get("mean")) is None:
        return {"text": "–", "more": ""}
    sd = words.number(stat.get("sd"), 12)
    runs = stat.get("runs") or []
    text = words.fixed(stat["mean"], 3) + ("" if sd is None else f" ± {words.fixed(sd, 3)}")
    return {
        "text": text,
        "more": ", ".join("failed" if words.number(v) is None else words.fixed(v, 3) for v in runs)
        if len(runs) > 1
        else "",
    }


def _missing(arm: Arm) -> str:
    """What stands where an arm has no number."""
    return "–" if finished(arm) else "failed"


def _failed(arm: Arm) -> str:
    """What is said of an arm some of whose runs failed."""
    bad = [run for run in arm["runs"] if run.get("failed")]
    if not bad:
        return ""
    said = "; ".join(f"seed {run['seed']}: {run['failed']}" for run in bad)
    kept = len(finished(arm))
    return f"{len(bad)} of {kept + len(bad)} runs failed ({said})" + ("; the numbers are of the rest" if kept else "")


def _more(arm: Arm, first: Arm, index: int) -> str:
    own, base = words.number(arm.get("parameters"), 15), words.number(first.get("parameters"), 15)
    if not index or own is None or base is None:
        return ""
    return "as many" if own == base else ("+" if own > base else "−") + words.thousands(abs(own - base))


def flop_unit(trial: Trial) -> tuple[str, float]:
    """GFLOPs, or MFLOPs where all models are small."""
    most = max((x for arm in trial["arms"] if (x := words.number(arm.get("flops"))) is not None), default=0.0)
    return ("GFLOPs", 1e9) if most >= 1e8 else ("MFLOPs", 1e6)


def _flops(arm: Arm, first: Arm, unit: float, index: int) -> dict[str, str]:
    own, base = words.number(arm.get("flops"), 15), words.number(first.get("flops"), 15)
    if own is None:
        return {"text": "–", "more": ""}
    if not index or not base:
        change = ""
    elif own == base:
        change = "as many"
    else:
        share = 100 * (own / base - 1)
        change = f"{words.fixed(share, 1, sign=True)} %" if abs(share) >= 0.05 else "nearly as many"
    return {"text": words.show(own / unit), "more": change}


def _throughput(measured: Any) -> dict[str, str]:
    ratio, speed = (measured or {}).get("ratio") or {}, words.number((measured or {}).get("images_per_second"))
    rate = "" if speed is None else f"{words.thousands(speed) if speed >= 100 else words.show(speed)} images/s"
    if words.number(ratio.get("median")) is None:
        return {"text": rate or "–", "more": ""}
    low, high = words.fixed(ratio.get("low"), 2), words.fixed(ratio.get("high"), 2)
    median = words.fixed(ratio["median"], 2)
    return {"text": median + (f" ({low}–{high})" if low != high else ""), "more": rate}

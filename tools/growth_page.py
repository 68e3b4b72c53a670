"""How a diagnosis and training grow, and what large runs would cost, from results/growth.json.

`benchmarks/growth.py` measures and prints the same tables. Times are CPU times in seconds per image, memory in bytes.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from tools.markdown import DOCS, RESULTS, page, table

RECORD = RESULTS / "growth.json"
GOAL_TOKENS, GOAL_BYTES = 4096, 4 * 2**30
IMAGENET, VALIDATION, STREAM = 1_281_167, 50_000, 100_000_000  # images
EPOCHS, ARMS, SEEDS = 300, 7, 5
GUIDE = "guides/scale.md"
START, END = "<!-- large runs: written by `make docs` -->", "<!-- /large runs -->"
LEAST_SHARE = 0.05  # of the forward pass: shorter times of a vital are noise
WITH = {"tokens": "{} tokens", "depth": "depth {}", "width": "width {}", "images": "{} images"}
COLUMNS = {"forward": 1e3, "diagnosis": 1e3, "diagnosis_bytes": 2**-20, "step": 1e3, "step_bytes": 2**-20}
HEADINGS = (
    "forward, ms per image", "diagnosis, ms per image", "ratio", "diagnosis, peak MiB", "training step, ms per image",
    "training, peak MiB",
)  # fmt: skip
HEAD = """
How the time and memory of a diagnosis and of a training step grow. Slopes are those of log time or log memory against
log size: 1 is linear, 2 quadratic. Each point is a process with one thread on {cpu}, torch {torch}. Times are CPU times
of {measurements}, or the median of several if they are short; the machine was busy with other work. The diagnosis is
the whole default one, with its random reference, samples and verdict. The column "ratio" is its time divided by that of
the forward pass; the number below it is the difference of the two slopes. A training step has a batch of {batch}
images, except where images vary. `make bench` prints these tables; `python benchmarks/growth.py --write` records them.
"""
TOKENS = """
Maps have n² entries per head, whereas the quadratic part of the forward pass, fused attention, takes little time until
n is several times the width. So a diagnosis computes the maps of fewer images when they are large: of 16 up to 256
tokens, of 4 at 1,024 and of one from 4,096 tokens on. Maps are decomposed for one image from 300 tokens on, and above
1,024 tokens only on request.
"""

VITALS = """
The number of map entries that a vital reads is quadratic up to the size from which its maps are computed for fewer
images than it asks for, and linear from there to 4,096 tokens. Most ask for 16 images, so this size is 256 tokens;
`similar_blocks` asks for 8 (512 tokens) and `attention_spectrum` for 2 (2,048 tokens). Times grow somewhat faster than
the entries. So single vitals of maps grow faster than the forward pass here, although each takes less time than it.
"""


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of least squares in log–log; NaN if fewer than two values are positive."""
    pairs = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True) if y > 0]
    return statistics.linear_regression(*zip(*pairs, strict=True)).slope if len(pairs) > 1 else math.nan


def line_of(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Constant and slope of the line with the least squares of relative errors."""
    weights = [1 / y**2 for y in ys]
    x0, y0 = (sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights) for values in (xs, ys))
    terms = list(zip(weights, xs, ys, strict=True))
    rise = sum(w * (x - x0) * (y - y0) for w, x, y in terms) / sum(w * (x - x0) ** 2 for w, x, _ in terms)
    return y0 - rise * x0, rise


def slopes(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: slope([row["size"] for row in rows], [row[key] for row in rows]) for key in COLUMNS}


def _minus(text: str) -> str:
    return "–" if "nan" in text else text.replace("-", "−")


def _grown(name: str, rows: Sequence[dict[str, float]]) -> list[str]:
    """The table of one series, and its slopes."""
    cells = list[list[str]]()
    for row in rows:
        shown = [f"{row[key] * unit:,.0f}" for key, unit in COLUMNS.items()]
        cells.append([f"{row['size']:,}", *shown[:2], f"{row['diagnosis'] / row['forward']:.1f}", *shown[2:]])
    if len(rows) > 1:
        found = slopes(rows)
        shown = [_minus(f"{value:.2f}") for value in found.values()]
        difference = _minus(f"{found['diagnosis'] - found['forward']:+.2f}")
        cells.append(["slope", *shown[:2], difference, *shown[2:]])
    return table((name, *HEADINGS), cells)


def _depth_note(rows: Sequence[dict[str, float]]) -> list[str]:
    """The constant part of the forward pass, which makes its slope by depth less than 1."""
    depths = [row["size"] for row in rows]
    if len(rows) < 3:
        return []
    said = []
    for key, name in (("forward", "The forward pass"), ("diagnosis", "the diagnosis")):
        values = [row[key] for row in rows]
        constant, rise = line_of(depths, values)
        fitted = [constant + rise * depth for depth in depths]
        worst = max(abs(f / v - 1) for f, v in zip(fitted, values, strict=True))
        said.append(
            f"{name} takes {1e3 * constant:.1f} ms and {1e3 * rise:.1f} ms per block (a line that misses no "
            f"measurement by more than {100 * worst:.0f} %, and whose slope in log–log is {slope(depths, fitted):.2f})"
        )
    limit = line_of(depths, [row["diagnosis"] for row in rows])[1] / line_of(depths, [r["forward"] for r in rows])[1]
    return [
        f"The constant parts (patch embedding, head, and what a diagnosis does once) make both slopes less than 1. "
        f"{'; '.join(said)}. So the ratio tends to {limit:.1f}, that of the times per block, and does not grow without "
        "limit.", "",
    ]  # fmt: skip


def _vital_slopes(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of the vitals whose times are large enough to have one, by tokens; the slowest at most tokens first."""
    sizes = [row["size"] for row in rows]
    slowest = sorted(rows[-1]["vitals"], key=lambda key: -float(rows[-1]["vitals"][key]))
    return {
        key: slope(sizes, [row["vitals"][key] for row in rows])
        for key in slowest
        if all(row["vitals"][key] > LEAST_SHARE * row["forward"] for row in rows)
    }


def _vitals(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What each vital adds, the slowest at most tokens first."""
    sizes = [row["size"] for row in rows]
    shown = [key for key in rows[0]["vitals"] if any(row["vitals"][key] > LEAST_SHARE * row["forward"] for row in rows)]
    shown.sort(key=lambda key: -float(rows[-1]["vitals"][key]))
    found = _vital_slopes(rows)
    named = {"(forward pass)": [row["forward"] for row in rows], "(probe alone)": [row["probe"] for row in rows]}
    cells = [
        [name, *(f"{1e3 * value:,.1f}" for value in values), _minus(f"{slope(sizes, values):.2f}")]
        for name, values in named.items()
    ] + [
        [f"`{key}`", *(f"{1e3 * row['vitals'][key]:,.1f}" for row in rows), _minus(f"{found.get(key, math.nan):.2f}")]
        for key in shown
    ]
    rest = len(rows[0]["vitals"]) - len(shown)
    return [
        *table(("vital", *(f"{size:,} tokens, ms per image" for size in sizes), "slope"), cells),
        f"The {rest} other default vitals add less than {100 * LEAST_SHARE:.0f} % of a forward pass at every size. A "
        "dash is the slope of times that are as short somewhere.", "", VITALS.strip(), "",
    ]  # fmt: skip


def _processes(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = []
    for row in rows:
        alone = next(r for r in rows if r["what"] == row["what"] and r["processes"] == 1)
        grown = slope([1, row["processes"]], [alone["seconds"], row["seconds"]]) if row is not alone else math.nan
        cells.append([
            row["what"], row["processes"], f"{row['seconds']:.2f}", _minus(f"{grown:.2f}"),
            f"{row['bytes'] / 2**20:,.0f}",
        ])  # fmt: skip
    return table(("work", "processes", "seconds of the busiest process", "slope", "peak MiB of a process"), cells)


def lines(record: dict[str, Any]) -> list[str]:
    """The sections of all that was measured so far."""
    out = []
    for name, rows in record["series"].items():
        others = ", ".join(WITH[key].format(value) for key, value in record["base"].items() if key != name)
        out += [f"## {name.capitalize()}", "", f"With {others}.", "", *_grown(name, rows)]
        if name == "tokens":
            out += [TOKENS.strip(), ""]
        if name == "depth":
            out += _depth_note(rows)
    if "vitals" in record:
        base = record["base"]
        out += ["## Vitals by tokens", "", f"What each vital adds to a pass over {base['images']} images, of one block "
                f"with width {base['width']}.", "",
                *_vitals(record["vitals"])]  # fmt: skip
    if "processes" in record:
        shared = record["shared"]
        out += [
            "## Processes", "",
            f"The same work of several processes together (gloo, one machine): a diagnosis of {shared['images']} "
            f"images, and a training step of {shared['batch']}. Work that divides evenly has slope −1. The random "
            "reference, samples, the verdict and the maps of the first images are work of the first process.", "",
            *_processes(record["processes"]),
        ]  # fmt: skip
    if "real" in record:
        out += [*_real(record)]
    return out


def _real(record: dict[str, Any]) -> list[str]:
    """DeiT-S, and what the slopes predict for it."""
    real, series, base = record["real"], record["series"], record["base"]
    cells = [
        ("forward, diagnosis", row["images"], f"{1e3 * row['forward']:,.0f}", f"{1e3 * row['diagnosis']:,.0f}", "",
         f"{row['bytes'] / 2**20:,.0f}")
        for row in real["diagnosed"]
    ] + [
        ("training step", row["images"], "", "", f"{1e3 * row['step']:,.0f}", f"{row['bytes'] / 2**20:,.0f}")
        for row in real["trained"]
    ]  # fmt: skip
    start = next(row for row in series["tokens"] if row["size"] == base["tokens"])
    size = {"tokens": 196, "depth": 12, "width": 384}
    predicted = {
        key: start[key] * math.prod((size[name] / base[name]) ** slopes(series[name])[key] for name in size)
        for key in ("forward", "step")
    }
    return [
        "## DeiT-S", "", f"`{real['host']}`, 224 pixels: what [large runs]({GUIDE}#what-large-runs-cost) are "
        "extrapolated from.", "",
        *table(("work", "images", "forward, ms per image", "diagnosis, ms per image", "training step, ms per image",
                "peak MiB"), cells),
        f"From the smallest model above ({base['tokens']} tokens, depth {base['depth']}, width {base['width']}), the "
        f"slopes by tokens, depth and width predict {1e3 * predicted['forward']:.0f} ms for its forward pass and "
        f"{1e3 * predicted['step']:.0f} ms for its training step per image; measured are "
        f"{1e3 * real['diagnosed'][-1]['forward']:.0f} and {1e3 * real['trained'][-1]['step']:.0f} ms.", "",
    ]  # fmt: skip


def goal_rows(record: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Each goal, what was measured, and whether it is reached."""
    most = next((row for row in record["series"]["tokens"] if row["size"] == GOAL_TOKENS), None)
    if most is not None:
        for key, work in (("diagnosis_bytes", "a diagnosis"), ("step_bytes", "a training step")):
            shown = f"{most[key] / 2**30:.2f} GiB"
            yield f"{work} with {GOAL_TOKENS:,} tokens: at most 4 GiB", shown, most[key] <= GOAL_BYTES
    for name, rows in record["series"].items():
        found = slopes(rows)
        if len(rows) < 2:
            continue
        if name == "depth":  # a forward pass is linear in depth, up to its constant part
            yield "a diagnosis by depth: slope at most 1", f"{found['diagnosis']:.2f}", found["diagnosis"] <= 1
            continue
        difference = found["diagnosis"] - found["forward"]
        goal = f"a diagnosis by {name}: slope at most that of the forward pass"
        yield goal, _minus(f"{found['diagnosis']:.2f} against {found['forward']:.2f}"), difference <= 0
    rows = record.get("vitals", [])
    if len(rows) > 1:
        limit = slope([row["size"] for row in rows], [row["forward"] for row in rows])
        faster = [f"`{key}` {value:.2f}" for key, value in _vital_slopes(rows).items() if value > limit]
        goal = f"each vital by tokens, up to {rows[-1]['size']:,}: slope at most that of the forward pass"
        yield goal, _minus(f"{', '.join(faster) or 'all'} against {limit:.2f}"), not faster


def goals(record: dict[str, Any]) -> list[str]:
    cells = [(goal, shown, "reached" if reached else "missed") for goal, shown, reached in goal_rows(record)]
    return ["## Goals", "", *table(("goal", "measured", ""), cells)]


def diagnosis_hours(real: dict[str, Any], images: int) -> float:
    """Of a number of images: the line through two diagnoses."""
    first, second = ((row["images"], row["images"] * row["diagnosis"]) for row in real["diagnosed"])
    rise = (second[1] - first[1]) / (second[0] - first[0])
    return float(first[1] + rise * (images - first[0])) / 3600


def epoch_hours(real: dict[str, Any], images: int, validation: int = 0) -> float:
    """Of training steps with the larger batch, and a forward pass of validation images."""
    return float(images * real["trained"][-1]["step"] + validation * real["diagnosed"][-1]["forward"]) / 3600


def large_runs(record: dict[str, Any]) -> list[str]:
    """What runs that nobody has run would cost."""
    real = record["real"]
    fewer, more = real["trained"]
    per_image = (more["bytes"] - fewer["bytes"]) / (more["images"] - fewer["images"])
    epoch = epoch_hours(real, IMAGENET, VALIDATION)
    by_images = slopes(record["series"]["images"])["step"]
    more_of = [
        f"{2 ** slopes(record['series'][name])['step']:.1f} times as long with twice the {name}"
        for name in ("tokens", "depth", "width")
    ]
    diagnosing, training = real["diagnosed"][-1]["bytes"], more["bytes"]
    runs = {
        f"diagnosis of {VALIDATION:,} images": (diagnosis_hours(real, VALIDATION), diagnosing),
        "one epoch of ImageNet": (epoch, training),
        f"{EPOCHS} epochs of ImageNet": (EPOCHS * epoch, training),
        f"a trial of {ARMS} arms × {SEEDS} seeds, {EPOCHS} epochs each": (ARMS * SEEDS * EPOCHS * epoch, training),
        f"diagnosis of a stream of {STREAM // 10**6} million images": (diagnosis_hours(real, STREAM), diagnosing),
        "one epoch of that stream": (epoch_hours(real, STREAM), training),
    }
    cells = [(run, _hours(hours), f"{size / 2**30:.1f}") for run, (hours, size) in runs.items()]
    first, last = real["diagnosed"]
    return [
        f"For DeiT-S at 224 pixels, in hours of one thread of {record['cpu']}. These are extrapolations on a CPU, and "
        "nothing of it was run. They multiply times that were measured on a busy machine, in CPU time: a training step "
        f"of {more['images']} images ({1e3 * more['step']:.0f} ms per image), a forward pass "
        f"({1e3 * last['forward']:.0f} ms), and each image of a diagnosis after its first {first['images']} "
        f"({3.6e6 * (diagnosis_hours(real, 1) - diagnosis_hours(real, 0)):.0f} ms). Reading and decoding images is "
        "not included.", "",
        *table(("run", "thread-hours", "peak GiB of a process"), cells),
        f"An epoch of ImageNet is {IMAGENET:,} training and {VALIDATION:,} validation images. Training memory is that "
        f"of a batch of {more['images']} images per process; each further image adds {per_image / 2**20:.0f} MiB. "
        "Arms with a remedy take longer: [cost](../cost.md) has the ratios.", "",
        "The time per image does not depend on the number of images (slope of a training step: "
        f"{_minus(f'{by_images:.2f}')}). By the slopes, training takes {', '.join(more_of[:-1])} or {more_of[-1]}.",
    ]  # fmt: skip


def _hours(hours: float) -> str:
    digits = float(f"{hours:.2g}")  # more would say more than is known
    return f"{digits:,.0f}" if digits >= 10 else f"{digits:.1f}"


def rounded(value: Any) -> Any:
    """A record whose times have four digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def pages() -> dict[str, str]:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    measurements = "one measurement" if record["rounds"] == 1 else f"the median of {record['rounds']} measurements"
    head = HEAD.format(measurements=measurements, **{key: record[key] for key in ("cpu", "torch", "batch")})
    guide = (DOCS / GUIDE).read_text(encoding="utf-8")
    before, _, rest = guide.partition(START)
    written = "\n".join(large_runs(record))
    return {
        "growth.md": page(["# Growth", "", head.strip(), "", *goals(record), *lines(record)]),
        GUIDE: f"{before}{START}\n{written}\n{END}{rest.partition(END)[2]}",
    }

"""Growth of a diagnosis and of a training step with tokens, depth, width, images and processes.

Each point runs in its own process with one thread: CPU time (the machine may be busy) and peak memory. The diagnosis is
the whole default one: vitals, random reference, samples and verdict. A training step is forward, backward and
AdamW. Slopes are those of least squares in log–log. Vitals are timed one by one, as what `measure` takes with one vital
more than with none.

Goals: the diagnosis grows no faster than the forward pass of the host plus n·d per block (its time divided by
that of the forward pass does not grow), and 4,096 tokens need at most 4 GiB.

    python benchmarks/growth.py [--most-tokens 1024] [--rounds 1] [--jobs 1] [--write]

`make bench` runs it to 1,024 tokens. `--write` writes docs/growth.md, by default with 4,096 tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

BASE = {"tokens": 256, "depth": 2, "width": 192, "images": 4}
WITH = {"tokens": "{} tokens", "depth": "depth {}", "width": "width {}", "images": "{} images"}
SERIES = {
    "tokens": (64, 256, 1024, 4096),
    "depth": (2, 4, 8),
    "width": (96, 192, 384),
    "images": (4, 16, 64),
}
VITALS_MOST = 1024  # tokens, for which vitals are timed one by one
BATCH = 4  # images of a training step
GOAL_BYTES = 4 * 2**30
PAGE = Path(__file__).parent.parent / "docs" / "growth.md"


def spec(tokens: int, depth: int, width: int) -> str:
    side = 8 * math.isqrt(tokens)
    return (
        f"vit_tiny_patch16_224(img_size={side}, patch_size=8, depth={depth}, embed_dim={width}, "
        f"num_heads={max(1, width // 64)})"
    )


def cpu_time(work: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times)


def point(what: str, tokens: int, depth: int, width: int, images: int, rounds: int) -> dict[str, Any]:
    """One measurement, in this process."""
    import torch

    import unsmooth
    from unsmooth.data.image_batches import image_batches
    from unsmooth.diagnosis import registry
    from unsmooth.diagnosis.diagnose import _batch_size
    from unsmooth.diagnosis.measure import measure
    from unsmooth.surgery.plan import anatomy_of

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = unsmooth.create_model(spec(tokens, depth, width))
    side = 8 * math.isqrt(tokens)
    pictures = torch.randn(images, 3, side, side)

    def forward() -> None:
        with torch.no_grad():
            for part in pictures.split(4):
                model(part)

    forward()
    if what == "train":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad()
            model(pictures[:BATCH]).square().mean().backward()
            optimizer.step()

        step()
        values: dict[str, Any] = {"seconds": cpu_time(step, rounds) / BATCH}
    elif what == "diagnose":
        model.eval()
        plain = cpu_time(forward, rounds)
        values = {
            "forward": plain / images,
            "seconds": cpu_time(lambda: unsmooth.diagnose(model, pictures, limit=None, progress=False), rounds),
        }
    else:  # vitals, one by one
        model.eval()
        anatomy = anatomy_of(model)
        batch = _batch_size(anatomy)

        def with_vitals(chosen: list[Any]) -> float:
            return cpu_time(
                lambda: measure(model, anatomy, image_batches(model, pictures, batch, None), chosen), rounds
            )

        with_vitals([])
        nothing = with_vitals([])
        values = {"forward": cpu_time(forward, rounds), "probe": nothing, "vitals": {}}
        for vital in registry.select("default"):
            if vital.of != "model":
                values["vitals"][vital.key] = max(0.0, with_vitals([vital]) - nothing)
    values["bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return values


@cache
def run_point(text: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--point", text]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def in_process(what: str, rounds: int, **at: int) -> dict[str, Any]:
    return run_point(text_of(what, rounds, **at))


def text_of(what: str, rounds: int, **at: int) -> str:
    return json.dumps({"what": what, "rounds": rounds, **BASE, **at})


def run_ahead(series: dict[str, tuple[int, ...]], rounds: int, jobs: int) -> None:
    """Run all points, several at a time, the longest first."""
    texts = [
        text_of(what, rounds, **{name: value})
        for name, values in series.items()
        for value in reversed(values)
        for what in ("diagnose", "train")
        if (name, what) != ("images", "train")
    ]
    texts += [text_of("vitals", rounds, tokens=value, depth=1) for value in series["tokens"] if value <= VITALS_MOST]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run_point, texts))


def by_processes(images: int, worlds: Sequence[int]) -> list[dict[str, float]]:
    """CPU time of the busiest process of a diagnosis under torchrun."""
    rows = []
    for world in worlds:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world),
                 __file__, "--share", folder, "--images", str(images)],
                check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            seconds = [float(path.read_text()) for path in Path(folder).iterdir()]
        rows.append({"processes": world, "seconds": max(seconds)})
    return rows


def share(folder: str, images: int) -> None:
    """The part of one process in a pass over the images."""
    import torch

    import unsmooth
    from unsmooth.data.image_batches import image_batches
    from unsmooth.diagnosis import registry
    from unsmooth.diagnosis.measure import measure
    from unsmooth.surgery.plan import anatomy_of
    from unsmooth.utils.processes import ALONE, init_processes

    torch.set_num_threads(1)
    torch.manual_seed(0)
    world = int(os.environ["WORLD_SIZE"])
    processes = init_processes("cpu") if world > 1 else ALONE
    model = unsmooth.create_model(spec(BASE["tokens"], BASE["depth"], BASE["width"])).eval()
    side = 8 * math.isqrt(BASE["tokens"])
    pictures = torch.randn(images, 3, side, side)
    anatomy = anatomy_of(model)
    source = image_batches(model, pictures, 16, None)
    measure(model, anatomy, list(source)[:1], registry.select("default"))
    started = time.process_time()
    measure(model, anatomy, source.share(processes), registry.select("default"), processes=processes)
    seconds = time.process_time() - started
    Path(folder, os.environ["RANK"]).write_text(str(seconds))
    processes.close()


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of least squares in log–log."""
    pairs = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True) if y > 0]
    if len(pairs) < 2:
        return float("nan")
    mx, my = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    return sum((x - mx) * (y - my) for x, y in pairs) / sum((x - mx) ** 2 for x, _ in pairs)


def slope_text(xs: Sequence[float], ys: Sequence[float]) -> str:
    value = slope(xs, ys)
    return "–" if math.isnan(value) else f"{value:.2f}".replace("-", "−")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]
    return [*lines, ""]


def grown(name: str, values: Sequence[int], rounds: int, echo: Callable[[str], None]) -> list[str]:
    rows, columns = [], list[tuple[float, ...]]()
    for value in values:
        found = in_process("diagnose", rounds, **{name: value})
        step = in_process("train", rounds, **{name: value}) if name != "images" else None
        images = value if name == "images" else BASE["images"]
        per_image = found["seconds"] / images
        columns.append((found["forward"], per_image, found["bytes"], step["seconds"] if step else 0.0,
                        step["bytes"] if step else 0.0))  # fmt: skip
        rows.append([
            f"{value:,}", f"{1e3 * found['forward']:,.0f}", f"{1e3 * per_image:,.0f}",
            f"{per_image / found['forward']:.1f}", f"{found['bytes'] / 2**20:,.0f}",
            *([f"{1e3 * step['seconds']:,.0f}", f"{step['bytes'] / 2**20:,.0f}"] if step else []),
        ])  # fmt: skip
        echo("  ".join(rows[-1]))
    slopes = [slope(values, column) for column in zip(*columns, strict=True)]
    rows.append([
        "slope", f"{slopes[0]:.2f}", f"{slopes[1]:.2f}", f"{slopes[1] - slopes[0]:+.2f}", f"{slopes[2]:.2f}",
        *([f"{slopes[3]:.2f}", f"{slopes[4]:.2f}"] if name != "images" else []),
    ])  # fmt: skip
    rows[-1] = [text.replace("-", "−") for text in rows[-1]]
    echo("  ".join(rows[-1]))
    head = [name, "forward, ms per image", "diagnosis, ms per image", "ratio", "diagnosis, peak MiB"]
    if name != "images":
        head += ["training step, ms per image", "training, peak MiB"]
    return table(head, rows)


def vitals_by_tokens(values: Sequence[int], rounds: int, echo: Callable[[str], None]) -> list[str]:
    found = {value: in_process("vitals", rounds, tokens=value, depth=1) for value in values}
    forward = [found[value]["forward"] for value in values]
    rows = [["(forward pass)", *(f"{1e3 * f:,.0f}" for f in forward), slope_text(values[1:], forward[1:])]]
    probe = [found[value]["probe"] for value in values]
    rows.append(["(probe alone)", *(f"{1e3 * f:,.0f}" for f in probe), slope_text(values[1:], probe[1:])])
    keys = sorted(found[values[0]]["vitals"], key=lambda key: -found[values[-1]]["vitals"][key])
    for key in keys:
        times = [found[value]["vitals"][key] for value in values]
        rows.append([f"`{key}`", *(f"{1e3 * t:,.0f}" for t in times), slope_text(values[1:], times[1:])])
        echo("  ".join(rows[-1]))
    return table(["vital", *(f"{value:,} tokens, ms" for value in values), f"slope from {values[1]:,}"], rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most-tokens", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="points measured at the same time")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parser.add_argument("--share", help=argparse.SUPPRESS)
    parser.add_argument("--images", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(point(**json.loads(options.point))))
        return
    if options.share:
        share(options.share, options.images)
        return
    most = options.most_tokens or (SERIES["tokens"][-1] if options.write else 1024)
    lines: list[str] = []
    series = {**SERIES, "tokens": tuple(v for v in SERIES["tokens"] if v <= most)}
    if options.jobs > 1:
        run_ahead(series, options.rounds, options.jobs)
    for name, values in series.items():
        others = ", ".join(WITH[key].format(value) for key, value in BASE.items() if key != name)
        print(f"{name} ({others})")
        lines += [f"## {name.capitalize()}", "", f"With {others}.", "", *grown(name, values, options.rounds, print)]
    print("vitals by tokens")
    values = tuple(v for v in series["tokens"] if v <= VITALS_MOST)
    lines += ["## Vitals by tokens", "", f"{BASE['images']} images, one block of {BASE['width']} channels; "
              "what each vital adds to a pass.", "", *vitals_by_tokens(values, options.rounds, print)]  # fmt: skip
    print("processes")
    rows = by_processes(64, (1, 2))
    for row in rows:
        print(f"{row['processes']}  {row['seconds']:.2f} s")
    lines += ["## Processes", "", "A pass over 64 images; CPU time of the busiest process.", "",
              *table(["processes", "seconds"], [[r["processes"], f"{r['seconds']:.2f}"] for r in rows])]  # fmt: skip
    if options.write:
        import torch

        measurements = "one measurement" if options.rounds == 1 else f"the median of {options.rounds} measurements"
        instructions = torch.backends.cpu.get_cpu_capability().replace("AVX512", "AVX-512")
        head = HEAD.format(cpu=f"an x86 CPU ({instructions})", measurements=measurements)
        PAGE.write_text(f"{head}\n" + "\n".join(lines).rstrip() + "\n", encoding="utf-8")


HEAD = """# Growth

<!-- Written by benchmarks/growth.py --write. -->

How the time and memory of a diagnosis and of a training step grow. Slopes are those of log time or log memory against
log size: 1 is linear, 2 quadratic. Each point is a process with one thread on {cpu}. Times are CPU times of
{measurements}; the machine was busy with other work. The diagnosis is the whole default one, with its random reference,
samples and verdict, whose cost few images share here. The column "ratio" is its time divided by that of the forward
pass; the number below it is the difference of the two slopes. A dash is a slope of times that are too small.

Vitals of attention maps read n² numbers per head and pass, whereas the quadratic part of the forward pass, fused
attention, takes little time until n is several times the width. So the ratio grows with many tokens until both are
quadratic: the goal that it does not grow is missed there. At 1,024 tokens, all other vitals together take as long as a
forward pass.
"""


if __name__ == "__main__":
    main()

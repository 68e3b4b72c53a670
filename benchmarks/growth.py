"""Growth of a diagnosis and of a training step with tokens, depth, width, images and processes.

Each point runs in its own process with one thread: CPU time (the machine may be busy) and peak memory. The diagnosis is
the whole default one: vitals, random reference, samples and verdict. A training step is forward, backward and AdamW.
Vitals are timed one by one, as what `measure` takes with one vital more than with none. DeiT-S at 224 pixels is what
the costs of large runs are extrapolated from. Tables, slopes and goals are those of `tools/growth_page.py`.

    python benchmarks/growth.py [--most-tokens N] [--rounds 1] [--write]

`--write` writes results/growth.json, of which `make docs` makes docs/growth.md and a section of docs/guides/scale.md.
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
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tools import growth_page

BASE = {"tokens": 256, "depth": 2, "width": 192, "images": 16}
SERIES = {
    "tokens": (64, 256, 1024, 4096),
    "depth": (2, 4, 8, 16),
    "width": (96, 192, 384),
    "images": (4, 16, 64),
}
VITALS_TOKENS = (64, 256, 1024)  # for which vitals are timed one by one
BATCH = 4  # images of a training step, except where images vary
WORLDS = (1, 2)
SHARED_IMAGES, SHARED_BATCH = 512, 16  # of all processes together
PARTS = {"diagnosis": "a diagnosis of 512 images", "ddp": "a training step, DDP", "shard": "a training step, `--shard`"}
REAL: dict[str, Any] = {"spec": "deit_small_patch16_224", "side": 224, "diagnosed": (16, 80), "trained": (4, 16)}
LEAST_SECONDS, MOST_ROUNDS = 1.0, 20  # short work is repeated


def spec(tokens: int, depth: int, width: int) -> str:
    return (
        f"vit_tiny_patch16_224(img_size={_side(tokens)}, patch_size=8, depth={depth}, embed_dim={width}, "
        f"num_heads={max(1, width // 64)})"
    )


def _side(tokens: int) -> int:
    return 8 * math.isqrt(tokens)


def cpu_time(work: Callable[[], Any], rounds: int) -> float:
    """The median CPU time of at least `rounds` calls."""
    times = list[float]()
    while len(times) < rounds or (sum(times) < LEAST_SECONDS and len(times) < MOST_ROUNDS):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times)


def training_step(model: Any, images: Any) -> Callable[[], None]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()

    return step


def point(what: str, host: str, side: int, images: int, rounds: int) -> dict[str, Any]:
    """One measurement, in this process: seconds per image and bytes."""
    import torch

    import unsmooth

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = unsmooth.create_model(host)
    pictures = torch.randn(images, 3, side, side)

    def forward() -> None:
        with torch.no_grad():
            for part in pictures.split(4):
                model(part)

    forward()
    if what == "train":
        step = training_step(model, pictures)
        step()
        values: dict[str, Any] = {"step": cpu_time(step, rounds) / images}
    elif what == "diagnose":
        model.eval()
        values = {
            "forward": cpu_time(forward, rounds) / images,
            "diagnosis": cpu_time(lambda: unsmooth.diagnose(model, pictures, limit=None, progress=False), rounds)
            / images,
        }
    else:
        model.eval()
        values = {"forward": cpu_time(forward, rounds) / images, **vitals_of(model, pictures, rounds)}
    return {**values, "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def vitals_of(model: Any, pictures: Any, rounds: int) -> dict[str, Any]:
    """Seconds per image of a pass without vitals, and what each default vital adds."""
    from unsmooth.data.image_batches import image_batches
    from unsmooth.diagnosis import registry
    from unsmooth.diagnosis.diagnose import _batch_size
    from unsmooth.diagnosis.measure import measure
    from unsmooth.surgery.plan import anatomy_of

    anatomy = anatomy_of(model)

    def with_vitals(chosen: list[Any]) -> float:
        batches = image_batches(model, pictures, _batch_size(anatomy), None)
        return cpu_time(lambda: measure(model, anatomy, batches, chosen), rounds) / len(pictures)

    with_vitals([])
    nothing = with_vitals([])
    of_images = [vital for vital in registry.select("default") if vital.of != "model"]
    return {"probe": nothing, "vitals": {v.key: max(0.0, with_vitals([v]) - nothing) for v in of_images}}


@cache
def run_point(text: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--point", text]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def at_size(what: str, rounds: int, images: int, tokens: int, depth: int, width: int) -> dict[str, Any]:
    host = spec(tokens, depth, width)
    return run_point(
        json.dumps({"what": what, "host": host, "side": _side(tokens), "images": images, "rounds": rounds})
    )


def row(name: str, value: int, rounds: int) -> dict[str, float]:
    """A diagnosis and a training step of one size."""
    size = {**BASE, name: value}
    diagnosed = at_size("diagnose", rounds, **size)
    trained = at_size("train", rounds, **(size if name == "images" else {**size, "images": BATCH}))
    return {
        "size": value,
        "forward": diagnosed["forward"],
        "diagnosis": diagnosed["diagnosis"],
        "diagnosis_bytes": diagnosed["bytes"],
        "step": trained["step"],
        "step_bytes": trained["bytes"],
    }


def real_host(rounds: int) -> dict[str, Any]:
    """DeiT-S: diagnoses of two numbers of images, and training steps of two batch sizes."""

    def measured(what: str, images: int) -> dict[str, Any]:
        given = {"what": what, "host": REAL["spec"], "side": REAL["side"], "images": images, "rounds": rounds}
        return {"images": images, **run_point(json.dumps(given))}

    return {
        "host": REAL["spec"],
        "diagnosed": [measured("diagnose", images) for images in REAL["diagnosed"]],
        "trained": [measured("train", images) for images in REAL["trained"]],
    }


def by_processes(part: str, world: int, rounds: int) -> dict[str, Any]:
    """The busiest of the processes that torchrun starts: CPU time and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        command += [__file__, "--share", part, folder, "--rounds", str(rounds)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        shares = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    return {"what": PARTS[part], "processes": world, **{k: max(s[k] for s in shares) for k in shares[0]}}


def share(part: str, folder: str, rounds: int) -> None:
    """The part of one process in a diagnosis or in training steps."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import unsmooth
    from unsmooth.training import sharding
    from unsmooth.utils.processes import ALONE, init_processes

    torch.set_num_threads(1)
    torch.manual_seed(0)
    processes = init_processes("cpu") if int(os.environ["WORLD_SIZE"]) > 1 else ALONE
    model: Any = unsmooth.create_model(spec(BASE["tokens"], BASE["depth"], BASE["width"]))
    side = _side(BASE["tokens"])
    if part == "diagnosis":
        pictures = torch.randn(SHARED_IMAGES, 3, side, side)
        unsmooth.diagnose(model, pictures[:4], progress=False)
        started = time.process_time()
        unsmooth.diagnose(model, pictures, limit=None, progress=False, processes=processes)
        seconds = time.process_time() - started
    else:
        pictures = torch.randn(SHARED_BATCH // processes.world, 3, side, side)
        if processes.world > 1 and part == "shard":
            sharding.shard(model, sharding.block_names(model), processes)
        elif processes.world > 1:
            model = DistributedDataParallel(model)
        step = training_step(model, pictures)
        step()
        times = list[float]()
        for _ in range(max(rounds, 5)):  # as many in every process
            started = time.process_time()
            step()
            times.append(time.process_time() - started)
        seconds = statistics.median(times)
    made = {"seconds": seconds, "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    Path(folder, os.environ["RANK"]).write_text(json.dumps(made))
    processes.close()


def measured(most: int, rounds: int) -> Iterator[dict[str, Any]]:
    """The record, after each of its parts."""
    import torch

    instructions = torch.backends.cpu.get_cpu_capability().replace("AVX512", "AVX-512")
    made: dict[str, Any] = {
        "cpu": f"an x86 CPU ({instructions})", "torch": torch.__version__.split("+")[0], "rounds": rounds, "base": BASE,
        "batch": BATCH, "shared": {"images": SHARED_IMAGES, "batch": SHARED_BATCH}, "series": {},
    }  # fmt: skip
    for name, values in SERIES.items():
        chosen = [value for value in values if name != "tokens" or value <= most]
        made["series"][name] = [row(name, value, rounds) for value in chosen]
        yield made
    size = {**BASE, "depth": 1}
    made["vitals"] = [
        {"size": n, **at_size("vitals", rounds, **{**size, "tokens": n})} for n in VITALS_TOKENS if n <= most
    ]
    yield made
    made["processes"] = [by_processes(part, world, rounds) for part in PARTS for world in WORLDS]
    yield made
    made["real"] = real_host(rounds)
    yield made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most-tokens", type=int, choices=SERIES["tokens"][1:], default=SERIES["tokens"][-1])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parser.add_argument("--share", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(point(**json.loads(options.point))))
        return
    if options.share:
        part, folder = options.share
        share(part, folder, options.rounds)
        return
    known = 0
    for made in measured(options.most_tokens, options.rounds):
        lines = growth_page.lines(made)
        print("\n".join(lines[known:]), flush=True)
        known = len(lines)
        if options.write:
            growth_page.RECORD.write_text(json.dumps(growth_page.rounded(made), indent=1) + "\n", encoding="utf-8")
    print("\n".join(growth_page.goals(made)))


if __name__ == "__main__":
    main()

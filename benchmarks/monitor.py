"""Cost of `unsmooth.Monitor` as a share of step time: DeiT-Ti at 224 px, batch 16, one thread.

A training step and a measurement run alternately in one process. Their processor times are compared, and a share is
stated for a measurement every 200 steps. The steps between are timed with and without the hooks of a monitor, in turns.
Goal: under 2 % of step time.

    python benchmarks/monitor.py [--host deit_tiny_patch16_224] [--batch 16] [--every 200] [--rounds 5] [--write]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F
from records import Record

import unsmooth

GOAL = 0.02


def processor_time(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="deit_tiny_patch16_224")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="record the goal")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = timm.create_model(given.host).train()
    size = model.pretrained_cfg["input_size"]
    images, labels = torch.randn(given.batch, *size), torch.randint(1000, (given.batch,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    plain, hooked, measured = [], [], []
    step()
    for turn in range(given.rounds + 1):
        alone = processor_time(step)
        with unsmooth.Monitor(model, every=given.every, on_alarm="ignore") as monitor:
            monitor.steps = 1  # the next measurement is far away
            monitor._image_hook.wanted = False
            between = processor_time(step)
            share = processor_time(lambda monitor=monitor: monitor.measure(images[:4]))  # type: ignore[misc]
        if turn:  # the first is a warm-up
            plain.append(alone)
            hooked.append(between)
            measured.append(share)
    ratios = [m / p for m, p in zip(measured, plain, strict=True)]
    cost = statistics.median(ratios)
    share = cost / given.every
    between = statistics.median(h / p for h, p in zip(hooked, plain, strict=True))
    conditions = f"{given.host}, batch {given.batch}, fp32, one thread, processor time, median of {given.rounds} rounds"
    print(conditions)
    print(f"training step            {statistics.median(plain):.2f} s")
    print(f"measurement of 4 images  {statistics.median(measured):.2f} s, {cost:.2f} steps")
    print(f"steps with the hooks     {between:.3f} of a step without (range of noise: "
          f"{min(plain) / statistics.median(plain):.3f}–{max(plain) / statistics.median(plain):.3f})")  # fmt: skip
    record = Record("monitor", conditions)
    record.goal(
        f"monitor every {given.every} steps, share of step time", 100 * share, 100 * GOAL, at_most=True, unit=" %"
    )
    print(f"under the goal from      every={max(1, int(cost / GOAL) + 1)} on")
    if given.write:
        record.write()


if __name__ == "__main__":
    main()

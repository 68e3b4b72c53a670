"""Where the time of a remedy goes, for each goal that the records miss: operators of torch, and the rest.

Host and treated model run in turns under `torch.profiler`. A row is an operator: its calls per treated site beyond
the host's, and what they take, the shortest of the passes, without the operators that it calls. The row "nothing" is a
patch or hook of the same mechanism that computes nothing: the cost of the seam. The rest is Python code of the remedy
and the way from Python to its operators; on DeiT-S also what the host's operators no longer find in the cache.

    python benchmarks/profiles.py [PROFILE …] [--passes 40] [--write]

Without names, the profiles of missed goals in results/bench/ are printed. Names are those of the small host of
`seam.py` ("small attn_scale, folded", "small augmented_shortcut training"), or of DeiT-S at batch 8 ("deit
augmented_shortcut"). Those that end in "compiled" compare compiled models: a row can be a kernel of inductor, and a
negative row is a kernel that the host has instead.
"""

from __future__ import annotations

import argparse
import copy
import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import seam
import torch
from records import Record, machine, recorded_goals
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import unsmooth

PASS = "one pass"
TRAINING, COMPILED = " training", " compiled"
KERNEL = re.compile(r"graph_\d+_(cpp_fused\w*?)(_\d+)?")  # a kernel of inductor: number of the graph, operators, number
SMALL_SHARE = 0.01  # of what a remedy adds: operators below it share a row


@dataclass
class Operators:
    """Operators of one pass: how often each is called, and its seconds without those that it calls."""

    calls: Counter[str]
    seconds: dict[str, float]


def operators(run: Callable[[], object], passes: int) -> Operators:
    """The time of each call of each operator, the shortest of the passes that call the same operators."""
    run()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(passes):
            with record_function(PASS):
                run()
    starts = sorted(event.time_range.start for event in profiled.events() if event.name == PASS)
    each: list[list[tuple[str, float]]] = [[] for _ in range(passes)]
    for event in sorted(profiled.events(), key=lambda event: event.time_range.start):
        if event.name.startswith(("aten::", "unsmooth::", "graph_")):
            kernel = KERNEL.fullmatch(event.name)
            name = kernel[1] if kernel else event.name
            each[bisect(starts, event.time_range.start) - 1].append((name, event.self_cpu_time_total * 1e-6))
    usual, _ = Counter(tuple(name for name, _ in calls) for calls in each).most_common(1)[0]
    alike = [[seconds for _, seconds in calls] for calls in each if tuple(name for name, _ in calls) == usual]
    seconds: dict[str, float] = defaultdict(float)
    for name, times in zip(usual, zip(*alike, strict=True), strict=True):
        seconds[name] += min(times)  # other processes interrupt some passes
    return Operators(Counter(usual), seconds)


def models(name: str) -> tuple[nn.Module, nn.Module, int, torch.Tensor]:
    """The host of a profile, its treated model, the number of sites, and the images."""
    host_name, _, arm_name = name.removesuffix(TRAINING).removesuffix(COMPILED).partition(" ")
    torch.manual_seed(0)
    if host_name == "deit":
        host = unsmooth.create_model(seam.LARGE_HOST).eval()
        model, sites = seam.treated(host, seam.Arm(arm_name, "", 0.0))
        return host, model, sites, torch.randn(seam.LARGE_BATCH, 3, 224, 224)
    arms = {arm.name: arm for arm in (*seam.ARMS, seam.SHORTCUT)}
    host = copy.deepcopy(unsmooth.create_model(seam.HOST).eval())
    model, sites = seam.treated(host, arms[arm_name])
    return host, model, sites, torch.randn(1, 3, 32, 32)


def seam_cost(name: str, host: nn.Module, images: torch.Tensor, passes: int) -> float:
    """Seconds per site of a patch that computes nothing, by the mechanism of a profile of the small host."""
    mechanisms = {arm.name: arm.mechanism for arm in (*seam.ARMS, seam.SHORTCUT)}
    mechanism = mechanisms.get(name.removeprefix("small "))
    for arm in seam.ARMS:
        if arm.spec.startswith("(") and arm.mechanism == mechanism != "residual sum" and not name.endswith(arm.name):
            model, sites = seam.treated(host, arm)
            return seam.added(host, model, images, passes, 5)[1] / sites
    return 0.0


def pair(name: str, host: nn.Module, model: nn.Module) -> list[Callable[[torch.Tensor], object]]:
    """What is compared: forward passes of both models, training steps, or compiled forward passes."""
    if name.endswith(TRAINING):
        return [seam.training_step(each) for each in (host, model)]
    return seam.compiled(host, model) if name.endswith(COMPILED) else [host, model]


def show(name: str, passes: int, record: Record) -> None:
    host, model, sites, images = models(name)
    trained = name.endswith(TRAINING)
    passes = passes if name.startswith("small ") else max(3, passes // 4)
    plain, arm = pair(name, host, model)
    with torch.set_grad_enabled(trained):
        _, added = seam.added(plain, arm, images, passes, 1 if name.startswith("deit ") else 5)
        with torch._inductor.config.patch("cpp.enable_kernel_profile", True):
            plain, arm = pair(name, host, model)
            before, after = operators(lambda: plain(images), passes), operators(lambda: arm(images), passes)
    total, rows, few = added / sites, [], 0.0
    differences = {
        operator: (after.seconds.get(operator, 0.0) - before.seconds.get(operator, 0.0)) / sites
        for operator in {**before.calls, **after.calls}
        if after.calls[operator] != before.calls[operator]
    }
    for operator, seconds in sorted(differences.items(), key=lambda item: -item[1]):
        if abs(seconds) < SMALL_SHARE * total:
            few += seconds
            continue
        calls = (after.calls[operator] - before.calls[operator]) / sites
        rows.append([f"`{operator}`", f"{calls:.3g}", f"{seconds * 1e6:.1f}", f"{seconds / total:.0%}"])
    nothing = seam_cost(name, host, images, passes)
    rest = total - sum(differences.values()) - nothing
    ends = (
        ("other operators", few),
        ("nothing: the seam", nothing),
        ("the rest", rest),
        ("together", total),
    )
    for label, seconds in (end for end in ends if end[1]):
        rows.append([label, "", f"{seconds * 1e6:.1f}", f"{seconds / total:.0%}"])
    record.table(name, (name, "calls per site", "µs per site", "share"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PROFILE")
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--write", action="store_true", help="record the tables for docs/")
    given = parser.parse_args()
    missed = dict.fromkeys(goal.profile for goal in recorded_goals() if goal.profile and not goal.reached)
    torch.set_num_threads(1)
    record = Record("profiles", f"One thread of {machine()}; {given.passes} passes, a quarter of them on DeiT-S.")
    for name in given.names or missed:
        show(name, given.passes, record)
    if given.write:
        record.write()


if __name__ == "__main__":
    main()

"""Cost of each remedy: parameters, operations, and throughput as a share of the plain host.

DeiT-S/16 at 224, batch 8 (training: 4), fp32, one thread. All arms run interleaved in one process, in a new random
order each round, with the host between any two. A share is the host's processor time, the mean of its runs before and
after the arm, over the arm's; the table shows the median and the quartiles over rounds. The machine is noisy: shares,
not times.

    python benchmarks/remedies.py [--host SPEC] [--batch 8] [--rounds 7] [--training-rounds 3] [--only NAME …]
                                  [--write] [--skip-training] [--training-batch 4]

`--write` records the table for docs/.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from published import PUBLISHED
from records import Record, machine, spread
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import unsmooth
from unsmooth.surgery.record import record_of

ARMS = [
    "attn_scale", "feat_scale", "layer_scale", "context_broadcast", "context_broadcast(kind=scaled)",
    "augmented_shortcut", "token_graying", "token_graying(transform=svd)", "l2_attention", "logistic_attention",
    "shaped_attention", "centred_attention", "exclusive_attention", "graph_filter", "gated_attention", "value_anchor",
    "talking_heads", "re_attention", "contra_norm", "orthogonal_residual", "sigma_reparam", "qk_norm", "sink_logit",
    "specialized_norm", "registers", "test_time_register", "no_skip", "diverse_patch", "attention_diversity",
    "gram_anchor", "adder_attention", "adder",
]  # fmt: skip
TARGETS = {"attn_scale": 0.97, "feat_scale": 0.97, "context_broadcast": 0.98, "augmented_shortcut": 0.85,
           "token_graying": 0.95, "token_graying(transform=svd)": 0.85, "adder": 0.25}  # fmt: skip
TRAINING_TARGETS = {"augmented_shortcut": 0.85, "adder": 0.2}
PROFILES = {("augmented_shortcut", "inference"): "deit augmented_shortcut",
            ("augmented_shortcut", "training"): "deit augmented_shortcut training"}  # fmt: skip
Shares = dict[str, list[float]]


def interleave(jobs: dict[str, Callable[[], None]], rounds: int) -> Shares:
    """Shares of the host's speed: in each round every job once, in random order, and the host between any two.

    An arm without a goal runs in the first three rounds only.
    """
    host = jobs["host"]
    host()
    shares: Shares = {name: [] for name in jobs if name != "host"}
    for done in range(rounds):
        order = [name for name in shares if done < 3 or name in TARGETS]
        random.shuffle(order)
        before = _seconds(host)
        for name in order:
            if done == 0:
                jobs[name]()  # warm up
                before = _seconds(host)
            arm, after = _seconds(jobs[name]), _seconds(host)
            shares[name].append((before + after) / 2 / arm)
            before = after
    return shares


def _seconds(job: Callable[[], None]) -> float:
    start = time.process_time()
    job()
    return time.process_time() - start


def inference(model: nn.Module, images: torch.Tensor) -> Callable[[], None]:
    model.eval()

    @torch.no_grad()
    def job() -> None:
        model(images)

    return job


def training(model: nn.Module, images: torch.Tensor) -> Callable[[], None]:
    model.train()
    labels = torch.zeros(len(images), dtype=torch.long)

    def job() -> None:
        loss = nn.functional.cross_entropy(model(images), labels)
        extra = unsmooth.auxiliary_loss(model)
        (loss if extra is None else loss + extra).backward()
        model.zero_grad(set_to_none=True)

    return job


def treated(host: nn.Module, spec: str) -> nn.Module:
    model = copy.deepcopy(host)
    unsmooth.apply(model, spec)
    for _, part in unsmooth.parts(model):
        for name, parameter in part.named_parameters():
            if name.split(".")[-1] in ("omega", "s", "t", "lam"):
                nn.init.normal_(parameter, std=0.1)
    return model.eval()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--host", default="deit_small_patch16_224")
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--training-batch", type=int, default=4)
    options.add_argument("--training-rounds", type=int, default=3)
    options.add_argument("--only", nargs="*", default=ARMS)
    options.add_argument("--write", action="store_true", help="record the table for docs/")
    options.add_argument("--skip-training", action="store_true")
    given = options.parse_args()
    if given.write and (given.only is not ARMS or given.skip_training):
        options.error("--write records all arms. Remove --only and --skip-training.")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    host = unsmooth.create_model(given.host).eval()
    images = torch.randn(given.batch, 3, 224, 224)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        host(images[:1])
    flops = counter.get_total_flops()
    # A known answer guards the counter: some torch releases count fused attention on CPUs as zero.
    if given.host == "deit_small_patch16_224" and not 9.0e9 < flops < 9.4e9:
        warnings.warn(f"the FLOP counter gives {flops / 1e9:.2f} G for DeiT-S, where 9.2 G is right", stacklevel=1)
    parameters = sum(p.numel() for p in host.parameters())
    run: dict[str, Callable[[], None]] = {"host": inference(host, images)}
    plans, stays = {}, {}
    for arm in given.only:
        model = treated(host, arm)
        plans[arm] = unsmooth.plan(host, arm)
        run[arm] = inference(model, images)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folded = unsmooth.fold(model)
        stays[arm] = not record_of(folded).folded
        if not stays[arm]:
            run[f"{arm} folded"] = inference(folded, images)
        if arm in PUBLISHED:
            run[f"{arm} published"] = inference(PUBLISHED[arm](copy.deepcopy(host)), images)
    shares = interleave(run, given.rounds)
    trained: Shares = {}
    if not given.skip_training:
        few = images[: given.training_batch]
        jobs = {"host": training(copy.deepcopy(host), few)}
        jobs |= {arm: training(treated(host, arm), few) for arm in given.only}
        trained = interleave(jobs, given.training_rounds)
    record = Record("remedies", (
        f"{given.host}, batch {given.batch}, fp32, one thread of {machine()}; processor time, median (quartiles) over "
        f"{given.rounds} rounds, of arms without a goal 3; training at batch {given.training_batch}, "
        f"{given.training_rounds} rounds."
    ))  # fmt: skip
    head = ("remedy", "parameters", "GFLOPs", "inference", "goal", "folded", "as published", "training", "goal")
    rows = [["(plain host)", f"{parameters / 1e6:.3f} M", f"{flops / 1e9:.2f}", "1", "", "", "", "1", ""]]
    for arm in given.only:
        goals = {
            kind: record.goal(f"{arm}, {kind}, share of DeiT-S", statistics.median(by[arm]), targets[arm],
                              profile=PROFILES.get((arm, kind), "")).cell
            for kind, by, targets in (("inference", shares, TARGETS), ("training", trained, TRAINING_TARGETS))
            if arm in targets and arm in by
        }  # fmt: skip
        rows.append([
            f"`{arm}`", f"+{plans[arm].parameters:,}", f"{plans[arm].flops / 1e9:+.3f}", spread(shares[arm]),
            goals.get("inference", ""), "stays" if stays[arm] else spread(shares[f"{arm} folded"]),
            spread(shares.get(f"{arm} published", [])), spread(trained.get(arm, [])), goals.get("training", ""),
        ])  # fmt: skip
    record.table("remedies", head, rows)
    if given.write:
        record.write()


if __name__ == "__main__":
    main()

"""Speed of adder operators and of whole adder hosts, with goals, and the accuracy of int8.

    python benchmarks/adder_ops.py             # operators, then DeiT-S: a few minutes
    python benchmarks/adder_ops.py --accuracy  # also trains small adder hosts on digits, three seeds
    python benchmarks/adder_ops.py --write     # all of it, recorded for docs/

The speed of the product decides what the adder's is worth, so both are shown: the product of the math library that
torch calls for fp32 (MKL), and that of oneDNN, which torch ships too and which chooses its instructions by itself.

Everything runs alternately in one process, and processor time is compared within each round, so that other load on the
machine affects all arms. Medians and quartiles of the ratios are shown. Speeds are those of a model relative to
another, above 1 is faster; times of operators are relative to ``torch.cdist(p=1)`` or to a product of the same sizes,
below 1 is faster.

Without numba (``--torch``), the tiled loops have a thread barrier after each kernel. If other processes compete for the
cores, spinning at these barriers can take many times as long as the computation; in that case, set
OMP_WAIT_POLICY=PASSIVE.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import timm
import torch
from records import Record, machine, spread
from torch import Tensor, nn

import unsmooth
from unsmooth.evaluation.energy import energy
from unsmooth.evaluation.operations import count_operations
from unsmooth.remedies.kernels import adder
from unsmooth.remedies.kernels.adder_int8 import adder_linear_int8, l1_scores_int8, pack, quantize

Op = Callable[[Tensor, Tensor], Tensor]
Job = Callable[[], object]
GOALS = {"adder, inference": 0.25, "adder, training": 0.2, "adder int8, inference": 1.0}
SMALL = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=64, num_heads=2, depth=6, mlp_ratio=2)"
BUDGET: dict[str, Any] = {
    "epochs": 16,
    "batch_size": 32,
    "lr": 1.5e-3,
    "warmup_epochs": 2,
    "hflip": 0,
    "crop_scale": (1.0, 1.0),
}


def cdist(a: Tensor, b: Tensor) -> Tensor:
    return -torch.cdist(a, b, p=1.0)


def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.mT


def linear_int8(a: Tensor, b: Tensor) -> Op:
    """The int8 layer with its LayerNorm, for weights that are quantized before."""
    bytes_, zero, step = quantize(b)
    packed, offset, ones = pack(bytes_), zero[0].int(), torch.ones(len(b))
    return lambda x, _: adder_linear_int8(x, packed, offset, float(step), len(ones), ones, ones)


def gradients(op: Op, a: Tensor, b: Tensor, grad: Tensor) -> object:
    return torch.autograd.grad(op(a, b), (a, b), grad)


def interleave(jobs: dict[str, Job], rounds: int) -> dict[str, list[float]]:
    """Processor time of each job in each round."""
    for job in jobs.values():
        job()
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            times[name].append(time.process_time() - start)
    return times


def ratios(over: list[float], under: list[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]


def ratio(over: list[float], under: list[float]) -> str:
    return spread(ratios(over, under), 2)


def operators(rounds: int, record: Record) -> None:
    rows = []
    cases: list[tuple[str, Op, Op, tuple[int, ...], tuple[int, ...]]] = [
        ("scores", adder.l1_scores, lambda q, k: l1_scores_int8(q, k, 1.0), (48, 197, 64), (48, 197, 64)),
        ("linear", adder.adder_linear, adder_linear_int8, (1576, 384), (1536, 384)),
    ]
    for name, op, bytewise, left, right in cases:
        a, b, grad = torch.randn(left), torch.randn(right), torch.randn(*left[:-1], right[-2])
        bytewise = linear_int8(a, b) if bytewise is adder_linear_int8 else bytewise
        arms: dict[str, Op] = {"fp32": op, "int8": bytewise, "cdist": cdist, "product": product}
        forward = interleave({arm: partial(f, a, b) for arm, f in arms.items()}, rounds)
        a.requires_grad_(), b.requires_grad_()
        del arms["int8"]
        backward = interleave({arm: partial(gradients, f, a, b, grad) for arm, f in arms.items()}, rounds)
        for label, times, arm in (
            (f"{name}, fp32, forward", forward, "fp32"),
            (f"{name}, fp32, forward and backward", backward, "fp32"),
            (f"{name}, int8, forward", forward, "int8"),
        ):
            rows.append([label, ratio(times[arm], times["cdist"]), ratio(times[arm], times["product"])])
    record.table(
        "operators", ("time of an operator relative to", "`torch.cdist(p=1)`", "a product of the same sizes"), rows
    )


def rates(rounds: int, record: Record) -> None:
    """Pairs per second of an adder layer and of products of the same sizes."""
    x, weight = torch.randn(1576, 384), torch.randn(1536, 384)
    jobs: dict[str, Job] = {
        "product, MKL (what the host runs)": lambda: x @ weight.mT,
        "product, oneDNN": lambda: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], ""),
        "adder layer, fp32": lambda: adder.adder_linear(x, weight),
    }
    with torch.no_grad():
        times = interleave(jobs, 5 * rounds)
    pairs = x.numel() * len(weight) / 1e9
    rows = [[name, f"{pairs / median(seconds):.0f}"] for name, seconds in times.items()]
    record.table("rates", ("1,576 tokens, 384 → 1,536 channels", "G pairs per second"), rows)


def inference(model: nn.Module, images: Tensor) -> Job:
    def run() -> None:
        with torch.no_grad():
            model.eval()(images)

    return run


def training(model: nn.Module, images: Tensor) -> Job:
    def run() -> None:
        model.zero_grad()
        model.train()(images).square().mean().backward()

    return run


def models(name: str, batch: int, rounds: int, record: Record) -> None:
    torch.manual_seed(0)
    host = timm.create_model(name).eval()
    treated = copy.deepcopy(host)
    unsmooth.apply(treated, "adder")
    treated.eval()
    folded = unsmooth.fold(treated, dtype="int8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated in favour of torchao, which is another package
        dynamic = torch.ao.quantization.quantize_dynamic(copy.deepcopy(host), {nn.Linear}, torch.qint8)
    images = torch.randn(batch, *timm.data.resolve_model_data_config(host)["input_size"])
    arms = {"host": host, "adder": treated, "adder int8": folded, "torch int8": dynamic}
    ran = interleave({arm: inference(model, images) for arm, model in arms.items()}, rounds)
    trained = interleave(
        {"host": training(copy.deepcopy(host), images), "adder": training(copy.deepcopy(treated), images)}, rounds
    )
    rows = []
    for label, times, arm in (
        ("adder, inference", ran, "adder"), ("adder, training", trained, "adder"),
        ("adder int8, inference", ran, "adder int8"), ("torch dynamic int8 of the host, inference", ran, "torch int8"),
    ):  # fmt: skip
        shares = ratios(times["host"], times[arm])
        goal = record.goal(f"{label}, batch {batch}, share of the fp32 host", median(shares), GOALS[label]).cell if (
            label in GOALS) else ""  # fmt: skip
        rows.append([label, spread(shares, 2), goal])
    rows.append(["adder int8 relative to torch dynamic int8", ratio(ran["torch int8"], ran["adder int8"]), ""])
    record.table("models", (f"{name}, batch {batch}", "speed", "goal"), rows)
    with torch.no_grad():
        a, b = treated(images), folded(images)
    print(f"\noutputs of int8 and fp32 differ by {float((a - b).norm() / a.norm()):.3f} of their norm (not trained)")
    counted = {arm: count_operations(arms[arm]) for arm in ("host", "adder", "adder int8")}
    for arm, operations in counted.items():
        parts = ", ".join(
            f"{k} {v.add / 1e9:.3f} + {v.multiply / 1e9:.3f}" for k, v in operations.parts.items() if v.add
        )
        millijoules = energy(operations)
        print(f"{arm}: {millijoules:.3f} mJ, {energy(counted['host']) / millijoules:.2f} times less than the host")
        print(f"    G additions + multiplications: {parts}")


def accuracy(seeds: int, record: Record) -> None:
    rows = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            unsmooth.train(f"{SMALL}+adder", "digits", out=folder, seed=seed, vitals_every=0, **BUDGET)
            model = unsmooth.load(Path(folder) / "last").eval()
        folded = unsmooth.fold(model, dtype="int8")
        top1 = [unsmooth.evaluate(each, "digits")["validation"].top1 for each in (model, folded)]
        images = torch.rand(64, 1, 8, 8)
        with torch.no_grad():
            a, b = model(images), folded(images)
        difference = float((a - b).norm() / a.norm())
        rows.append([f"{seed}", f"{100 * top1[0]:.1f} %", f"{100 * top1[1]:.1f} %", f"{100 * difference:.1f} %"])
    note = f"Top-1 on the 359 validation digits; the norm by which the logits differ. {machine()}."
    record.table("accuracy", ("seed", "fp32", "int8", "logits differ by"), rows, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch", action="store_true", help="operators of torch, without numba")
    parser.add_argument("--accuracy", action="store_true", help="train small adder hosts and compare int8 with fp32")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="measure everything and record the tables for docs/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.torch:
        adder.compiled_operators = lambda: None  # type: ignore[assignment]
    compiled = adder.compiled_operators()
    kind = "torch" if compiled is None else f"numba, vectors of {32 * compiled.LANES} bits"
    record = Record("adder", (
        f"{args.threads} thread(s) of {machine()}; adder operators: {kind}; processor time, median (quartiles) over "
        f"{args.rounds} rounds."
    ))  # fmt: skip
    rates(args.rounds, record)
    operators(args.rounds, record)
    models(args.model, args.batch, args.rounds, record)
    if args.accuracy or args.write:
        accuracy(args.seeds, record)
    if args.write:
        record.write()


if __name__ == "__main__":
    main()

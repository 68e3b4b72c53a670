"""Time of the adder operators relative to ``torch.cdist(p=1)`` (below 1 is faster).

The two are run alternately and compared in pairs, so that other load on the machine affects both. The median
and the quartiles of the ratios are shown.

The tiled loops have a thread barrier after each kernel, cdist only one per call. If other processes compete
for the cores, spinning at these barriers can take many times as long as the computation; in that case, set
OMP_WAIT_POLICY=PASSIVE.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import quantiles

import torch
from torch import Tensor

from unsmooth.remedies.kernels.adder import adder_linear, l1_scores

Op = Callable[[Tensor, Tensor], Tensor]
CASES: list[tuple[str, Op, tuple[int, ...], tuple[int, ...]]] = [
    ("l1_scores", l1_scores, (48, 197, 64), (48, 197, 64)),
    ("adder_linear", adder_linear, (1576, 384), (1536, 384)),
]


def cdist(a: Tensor, b: Tensor) -> Tensor:
    return -torch.cdist(a, b, p=1.0)


def seconds(op: Op, a: Tensor, b: Tensor, grad: Tensor | None) -> float:
    start = time.perf_counter()
    out = op(a, b)
    if grad is not None:
        torch.autograd.grad(out, (a, b), grad)
    return time.perf_counter() - start


def ratios(op: Op, a: Tensor, b: Tensor, grad: Tensor | None, repeats: int) -> list[float]:
    seconds(op, a, b, grad), seconds(cdist, a, b, grad)
    return [seconds(op, a, b, grad) / seconds(cdist, a, b, grad) for _ in range(repeats)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"{'op':<14}{'pass':<18}{'median':>8}{'quartiles':>16}")
    for name, op, a_shape, b_shape in CASES:
        a, b = torch.randn(a_shape), torch.randn(b_shape)
        grad = torch.randn(*a_shape[:-1], b_shape[-2])
        for label, g in (("forward", None), ("forward+backward", grad)):
            a.requires_grad_(g is not None), b.requires_grad_(g is not None)
            low, mid, high = quantiles(ratios(op, a, b, g, args.repeats), n=4)
            print(f"{name:<14}{label:<18}{mid:>8.2f}{f'{low:.2f}-{high:.2f}':>16}", flush=True)


if __name__ == "__main__":
    main()

"""What a model costs: parameters, operations, and time measured beside other models in one process."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.operations import count_operations
from unsmooth.hosts.inputs import image_size
from unsmooth.hosts.modes import autocast, device_of, eval_mode
from unsmooth.hosts.outputs import forward
from unsmooth.surgery.auxiliary_loss import auxiliary_loss

ROUNDS = 10
Size = tuple[int, int, int]  # channels, height, width
SECONDS = 0.2  # that one measurement of one model lasts at least


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def flops(model: nn.Module, size: Size | None = None) -> int:
    """Floating-point operations for one image: two for each multiply-add of matrix products and convolutions.

    All else is left out: norms, softmax, activations, sums, the distances of adder layers. `operations` has those too.
    """
    return 2 * count_operations(model, size).parts["products"].multiply


def throughput(
    models: Mapping[str, nn.Module], batch_size: int = 32, rounds: int = ROUNDS, training: bool = False,
    amp: str = "none", seconds: float = SECONDS, size: Size | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Images per second of each model, and the ratio to the first one: the median over rounds with quartiles.

    Every round times every model once, in turn, so that a busy machine slows all of them; ratios are of one round.
    `training`: forward, backward and a step of AdamW, on copies. The models are not changed.
    """
    if not models or batch_size < 1 or rounds < 1:
        raise UnsmoothError("throughput needs a model, and a batch size and rounds of at least 1")
    with ExitStack() as stack:
        cuda = [device.index or 0 for device in map(device_of, models.values()) if device.type == "cuda"]
        stack.enter_context(torch.random.fork_rng(cuda))
        timers: dict[str, Callable[[], float]] = {}
        for name, model in models.items():
            if not training:
                stack.enter_context(eval_mode(model))
            images = torch.randn(batch_size, *(size or image_size(model)), device=device_of(model))
            step = _training_step(model, images, amp) if training else _inference(model, images, amp)
            timers[name] = _timer(step, seconds)
        found: dict[str, list[float]] = {name: [] for name in models}
        for turn in range(rounds):
            for name in list(timers)[:: 1 if turn % 2 else -1]:
                found[name].append(batch_size / timers[name]())
            if progress is not None:
                progress(turn + 1)
    first = np.array(next(iter(found.values())))
    return {name: _summary(np.array(speeds), first) for name, speeds in found.items()}


def _summary(speeds: Any, first: Any) -> dict[str, Any]:
    def quartiles(values: Any) -> dict[str, float]:
        return dict(zip(("low", "median", "high"), map(float, np.quantile(values, (0.25, 0.5, 0.75))), strict=True))

    speed = quartiles(speeds)
    return {
        "images_per_second": speed["median"],
        "quartiles": [speed["low"], speed["high"]],
        "ratio": quartiles(speeds / first),
        "rounds": len(speeds),
    }


def _timer(step: Callable[[], Any], seconds: float) -> Callable[[], float]:
    """Seconds of one step; steps are repeated until they last long enough to be measured."""
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it looks for compilers, and says so
    from torch.utils.benchmark import Timer

    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    once = min(timer.timeit(1).mean for _ in range(2))  # the first is a warm-up
    times = max(1, round(seconds / max(once, 1e-9)))
    return lambda: float(timer.timeit(times).mean)


def _inference(model: nn.Module, images: Tensor, amp: str) -> Callable[[], Any]:
    device = images.device

    def step() -> None:
        with autocast(amp, device):
            forward(model, images)

    return step


def _training_step(model: nn.Module, images: Tensor, amp: str) -> Callable[[], Any]:
    device = images.device
    trained = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW((p for p in trained.parameters() if p.requires_grad), lr=1e-6)
    labels = torch.zeros(len(images), dtype=torch.long, device=device)

    def step() -> None:
        with autocast(amp, device):
            loss = F.cross_entropy(forward(trained, images).float(), labels)
            extra = auxiliary_loss(trained)
            loss = loss if extra is None else loss + extra
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step

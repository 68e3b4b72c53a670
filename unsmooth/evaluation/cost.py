"""Cost of a model: parameters, FLOPs, and throughput measured together with other models in one process."""

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
from unsmooth.evaluation.operations import Size, count_operations
from unsmooth.hosts.inputs import input_shape
from unsmooth.hosts.modes import autocast, device_of, eval_mode
from unsmooth.hosts.outputs import forward
from unsmooth.results.bench import Quartiles, Throughput
from unsmooth.surgery.auxiliary_loss import auxiliary_loss

ROUNDS = 10
Array = np.ndarray[Any, Any]
SECONDS = 0.2  # minimum duration of one measurement


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def flops(model: nn.Module, size: Size | None = None) -> int:
    """FLOPs per image: two for each multiply-add of matrix products and convolutions.

    Norms, softmax, activations, sums and the distances of adder layers are not included; see `operations`.
    """
    return 2 * count_operations(model, size).parts["products"].multiply


def throughput(
    models: Mapping[str, nn.Module], batch_size: int = 32, rounds: int = ROUNDS, training: bool = False,
    amp: str = "none", seconds: float = SECONDS, size: Size | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Throughput]:  # fmt: skip
    """Images per second of each model, and the ratio to the first one: median over rounds with quartiles.

    Each round times every model once, so that a busy machine slows all of them. Ratios are computed within a round.
    `training` times forward, backward and an AdamW step, on copies. The models are not changed.
    """
    if not models or batch_size < 1 or rounds < 1:
        raise UnsmoothError(
            f"models, batch_size and rounds must be at least 1 (got {len(models)}, {batch_size} and {rounds})"
        )
    with ExitStack() as stack:
        cuda = [device.index or 0 for device in map(device_of, models.values()) if device.type == "cuda"]
        stack.enter_context(torch.random.fork_rng(cuda))
        timers: dict[str, Callable[[], float]] = {}
        for name, model in models.items():
            if not training:
                stack.enter_context(eval_mode(model))
            images = torch.randn(batch_size, *(size or input_shape(model)), device=device_of(model))
            step = _training_step(model, images, amp) if training else _inference(model, images, amp)
            timers[name] = _timer(step, seconds)
        speeds: dict[str, list[float]] = {name: [] for name in models}
        for turn in range(rounds):
            for name in list(timers)[:: 1 if turn % 2 else -1]:
                speeds[name].append(batch_size / timers[name]())
            if progress is not None:
                progress(turn + 1)
    first = np.array(next(iter(speeds.values())))
    return {name: _summary(np.array(by_round), first) for name, by_round in speeds.items()}


def _summary(speeds: Array, first: Array) -> Throughput:
    speed = _quartiles(speeds)
    return Throughput(speed.median, (speed.low, speed.high), _quartiles(speeds / first), len(speeds))


def _quartiles(values: Array) -> Quartiles:
    return Quartiles(*map(float, np.quantile(values, (0.25, 0.5, 0.75))))


def _timer(step: Callable[[], Any], seconds: float) -> Callable[[], float]:
    """A function that returns the seconds per step, averaged over enough steps to last `seconds`."""
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it warns if there is no compiler
    from torch.utils.benchmark import Timer

    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    once = min(timer.timeit(1).mean for _ in range(2))  # the first is a warm-up
    steps = max(1, round(seconds / max(once, 1e-9)))
    return lambda: float(timer.timeit(steps).mean)


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

"""Small runs for tests: a host of two blocks, digits, and processes that can be killed."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unsmooth.training.checkpoint import read_state
from unsmooth.training.run import train

HOST = "vit_tiny_patch16_224(img_size=8, patch_size=2, in_chans=1, embed_dim=16, num_heads=2, depth=2)"
SMALL = {"epochs": 2, "batch_size": 32, "train_images": 128, "val_images": 40, "vitals_every": 0, "lr": 2e-3}
# Everything that draws random numbers or keeps a state of its own.
RICH = {
    **SMALL, "epochs": 3, "mixup": 0.8, "cutmix": 1.0, "erasing": 0.5, "auto_augment": "rand-m9-mstd0.5-inc1",
    "drop_path": 0.2, "dropout": 0.1, "ema": 0.99, "repeated_augmentation": 2, "accumulate": 2, "vitals_every": 2,
    "layer_decay": 0.8,
}  # fmt: skip


def small_run(out: Path, spec: str = HOST, fields: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Train on some of the digits for a few steps."""
    return train(spec, "digits", out=out, **{**SMALL, **(fields or {}), **options})


def in_child(work: Callable[[], Any]) -> int:
    """Fork a process that runs `work`, with all imports done; return its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int, seconds: float = 120) -> int:
    """Wait for a child process; return its exit code, or minus the signal that killed it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number, status = os.waitpid(child, os.WNOHANG)
        if number:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child did not end")


def same_state(one: Any, other: Any) -> bool:
    """Whether two states are equal, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same_state(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def trainer_state(run: Path) -> Any:
    return read_state(run / "state.safetensors")["trainer"]


class StopAt:
    """Observer that sends a signal to its own process after a step."""

    def __init__(self, epoch: int, step: int) -> None:
        self.place = (epoch, step)

    def begin(self, epochs: int, steps: int, epoch: int) -> None: ...

    def step(self, epoch: int, step: int) -> None:
        if (epoch, step) == self.place:
            os.kill(os.getpid(), signal.SIGTERM)

    def epoch(self, line: dict[str, Any]) -> None: ...

"""Small runs for tests: a host of two blocks, digits, and processes that can be killed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import cloudpickle
import sklearn.datasets  # noqa: F401
import tensorboardX  # noqa: F401
import torch
import torch.distributed.fsdp

import unsmooth.models  # noqa: F401
from unsmooth.__main__ import run
from unsmooth.cli.main import main
from unsmooth.results.training import EpochMetrics, TrainingResult
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

# The server imports what a run imports, so that its children need not.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.support.server"])


def small_run(out: Path, spec: str = HOST, fields: dict[str, Any] | None = None, **options: Any) -> TrainingResult:
    """Train on some of the digits for a few steps."""
    return train(spec, "digits", out=out, **{**SMALL, **(fields or {}), **options})


def in_child(work: Callable[[], Any]) -> ForkServerProcess:
    """Start a process that runs `work`.

    It is forked from a server that has only imported modules: after a backward pass, the process of the tests has
    threads that a fork would lose.
    """
    child = PROCESSES.Process(target=_unpickle_and_run, args=(cloudpickle.dumps(work),))
    child.start()
    return child


def _unpickle_and_run(work: bytes) -> None:
    gc.enable()
    torch.set_num_threads(1)
    cloudpickle.loads(work)()


def start_command(*arguments: str, prepare: Callable[[], Any] = lambda: None) -> ForkServerProcess:
    """Start a process that runs a command line, as `python -m unsmooth` does. `prepare` is called in it before."""

    def work() -> None:
        prepare()
        sys.argv = ["unsmooth", *arguments]
        code = run()
        sys.stdout.flush()
        sys.stderr = None  # type: ignore[assignment]  # Python ignores at its end that it is closed, multiprocessing not
        sys.exit(code)

    return in_child(work)


def write_to(file: int, *streams: int) -> None:
    """Make a file the standard streams 1 and 2 of this process, or one of them."""
    sys.stdout.flush(), sys.stderr.flush()
    for stream in streams:
        os.dup2(file, stream)
        setattr(sys, {1: "stdout", 2: "stderr"}[stream], open(stream, "w", buffering=1, closefd=False))  # noqa: SIM115


def ended(child: ForkServerProcess, seconds: float = 120) -> int:
    """Wait for a child process; return its exit code, or minus the signal that killed it."""
    child.join(seconds)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("the child did not end")
    return child.exitcode


def free_port() -> int:
    with socket.socket() as meeting:
        meeting.bind(("127.0.0.1", 0))
        return int(meeting.getsockname()[1])


def together(world: int, work: Callable[[int], Any], seconds: float = 120) -> list[int]:
    """Run `work(rank)` in processes that meet as torchrun would have them meet; return their exit codes."""
    port = str(free_port())

    def as_worker(rank: int) -> None:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=port)  # fmt: skip
        work(rank)

    children = [in_child(partial(as_worker, rank)) for rank in range(world)]
    return [ended(child, seconds) for child in children]


def torchrun(logs: Path, *arguments: str) -> list[tuple[str, str]]:
    """Run a command line in two processes of torchrun, whose agent forks them; return what each one printed.

    The agent leaves its own signal handlers behind, so the old ones are restored.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", rdzv_configs={"is_host": True},
        local_addr="localhost", start_method="forkserver", monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(str(logs), Std.ALL),
    )  # fmt: skip
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        codes = elastic_launch(config, main)(list(arguments))
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
    assert codes == {0: 0, 1: 0}
    (attempt,) = logs.glob("*/attempt_0")
    return [
        tuple((attempt / str(rank) / f"{name}.log").read_text() for name in ("stdout", "stderr")) for rank in (0, 1)
    ]


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

    def epoch(self, line: EpochMetrics) -> None: ...

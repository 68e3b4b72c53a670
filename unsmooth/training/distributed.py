"""The processes that train together: one, or as many as torchrun started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from unsmooth.errors import UnsmoothError


@dataclass(frozen=True)
class Processes:
    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # a value

    @property
    def primary(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Which of the flags are up in any process."""
        if self.world == 1:
            return flags
        return tuple(self.total(torch.tensor([float(flag) for flag in flags], device=self.device)).bool().tolist())

    def on_primary(self, action: Callable[[], Any]) -> None:
        """Have the first process do something; where it fails, all of them stop for the same reason."""
        failure: UnsmoothError | None = None
        if self.primary:
            try:
                action()
            except UnsmoothError as error:
                failure = error
        reason = self.gather(None if failure is None else str(failure))[0]
        if failure is not None:
            raise failure
        if reason is not None:
            raise UnsmoothError(reason)

    def gather(self, value: Any) -> list[Any]:
        """What every process has, in order of rank; for small things."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()

    def close(self) -> None:
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join_processes(device: str = "") -> Processes:
    """Meet the other processes if torchrun (or SLURM) started any; gloo on CPUs, nccl on GPUs."""
    from timm.utils.distributed import init_distributed_device_so

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise UnsmoothError(f"unknown device {device!r}: try cpu, cuda or cuda:1") from error
    if wanted.type not in ("cpu", "cuda"):
        raise UnsmoothError(f"training on {device!r} is not supported: it needs double precision sums; try cpu or cuda")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted.type == "cuda" and (wanted.index or 0) >= there:
        raise UnsmoothError(f"there is no device {device!r} here: torch sees {there or 'no'} GPUs; try --device cpu")
    try:
        found = init_distributed_device_so(device)
    except (dist.DistError, RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
            raise UnsmoothError(
                "the port for the processes to meet at is in use: choose another one with torchrun --master-port, or "
                "let torchrun choose with --standalone"
            ) from error
        raise UnsmoothError(f"the processes could not meet: {first}") from error
    return Processes(found["global_rank"], found["world_size"], torch.device(found["device"]))

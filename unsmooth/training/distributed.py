"""Processes that train one model together: a single one, or those that torchrun started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from unsmooth.errors import UnsmoothError, first_line
from unsmooth.utils.devices import choose_device


@dataclass(frozen=True)
class Processes:
    """This process among all processes of a run.

    Attributes:
        rank: Index of this process.
        world: Number of processes.
        device: Device of this process.
    """

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # a value

    @property
    def primary(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sum of a tensor over all processes."""
        if self.world > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is set in any process."""
        if self.world == 1:
            return flags
        return tuple(self.total(torch.tensor([float(flag) for flag in flags], device=self.device)).bool().tolist())

    def on_primary(self, action: Callable[[], Any]) -> None:
        """Run an action in the primary process; if it fails, every process raises the same error."""
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
        """Values of all processes in order of rank; for small objects."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def close(self) -> None:
        """Leave the process group."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def init_processes(device: str = "") -> Processes:
    """Join the process group if torchrun or SLURM started several processes.

    Args:
        device: cpu, cuda or cuda:N (default: cuda if available). CPUs use gloo, GPUs use nccl.

    Returns:
        This process, with its rank and device.

    Raises:
        UnsmoothError: If the device does not exist or is not supported, or if the process group cannot be joined.
    """
    from timm.utils.distributed import init_distributed_device_so

    device = device or str(choose_device(None, mps=False))
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise UnsmoothError(f"unknown device {device!r}. Use cpu, cuda or cuda:N.") from error
    if parsed.type not in ("cpu", "cuda"):
        raise UnsmoothError(f"training on {device!r} is not supported: it needs float64 sums. Use cpu or cuda.")
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if parsed.type == "cuda" and (parsed.index or 0) >= available:
        raise UnsmoothError(f"device {device!r} does not exist: torch sees {available or 'no'} GPUs. Use --device cpu.")
    try:
        group = init_distributed_device_so(device)
    except (dist.DistError, RuntimeError, ValueError) as error:
        reason = first_line(error)
        network = isinstance(error, dist.DistNetworkError)
        hint = ". If the port is in use, use torchrun --standalone or another --master-port" if network else ""
        raise UnsmoothError(f"cannot join the process group: {reason}{hint}") from error
    return Processes(group["global_rank"], group["world_size"], torch.device(group["device"]))

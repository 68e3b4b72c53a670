"""Processes that work together on one model: a single one, or those that torchrun started.

torchrun starts its workers again after one died (--max-restarts), and they rendezvous through a store of its agent.
That store still has the addresses of the earlier processes, so each start uses a name of its own. (The variable
TORCH_DISABLE_SHARE_RDZV_TCP_STORE, which does the same, is read by the agent: a worker is too late to set it.)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from unsmooth.errors import UnsmoothError, first_line
from unsmooth.utils.devices import choose_device

T = TypeVar("T")
JOIN = timedelta(minutes=5)  # in which all processes must meet
WORK = timedelta(minutes=30)  # in which all processes must reach the same point afterwards


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

    def collect(self, value: Any) -> list[Any]:
        """Values of all processes in order of rank, in the primary process; an empty list in the others."""
        if self.world == 1:
            return [value]
        values: list[Any] | None = [None] * self.world if self.primary else None
        dist.gather_object(value, values)
        return values or []

    def from_primary(self, action: Callable[[], T]) -> T:
        """Run an action in the primary process. Every process gets its result, or raises if it fails."""
        if self.world == 1:
            return action()
        outcome: list[Any] = [None, None]
        if self.primary:
            try:
                outcome[0] = action()
            except UnsmoothError as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        value: T = outcome[0]
        return value

    def share_weights(self, model: nn.Module) -> None:
        """Give a model the weights and buffers that it has in the primary process."""
        if self.world > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), 0)

    def close(self) -> None:
        """Leave the process group."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


ALONE = Processes()


def init_processes(device: str = "") -> Processes:
    """Join the process group if torchrun or SLURM started several processes.

    Args:
        device: cpu, cuda or cuda:N (default: cuda if available). CPUs use gloo, GPUs use nccl.

    Returns:
        This process, with its rank and device.

    Raises:
        UnsmoothError: If the device does not exist or is not supported, or if the process group cannot be joined.
    """
    from timm.utils.distributed import is_distributed_env, world_info_from_env

    device = device or str(choose_device(None, mps=False))
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise UnsmoothError(f"unknown device {device!r}. Use cpu, cuda or cuda:N.") from error
    if parsed.type not in ("cpu", "cuda"):
        raise UnsmoothError(f"training on {device!r} is not supported: it needs float64 sums. Use cpu or cuda.")
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if parsed.type == "cuda" and (parsed.index or 0) >= available:
        raise UnsmoothError(
            f"device {device!r} does not exist: torch sees {available or 'no'} GPUs. Use device='cpu' (--device)."
        )
    if not is_distributed_env():
        return Processes(0, 1, parsed)
    local, rank, world = world_info_from_env()
    if parsed.type == "cuda":
        parsed = torch.device("cuda", local)
        torch.cuda.set_device(parsed)
    try:
        _join("nccl" if parsed.type == "cuda" else "gloo", rank, world)
    except (dist.DistError, RuntimeError, ValueError) as error:
        reason = first_line(error)
        network = isinstance(error, dist.DistNetworkError)
        hint = (
            ". If the port is in use, use torchrun --standalone or another --master-port"
            if network
            else f". All {world} processes must start within {JOIN.total_seconds():.0f} seconds"
        )
        raise UnsmoothError(f"cannot join the process group: {reason}{hint}") from error
    return Processes(rank, world, parsed)


def _join(backend: str, rank: int, world: int) -> None:
    """Meet the other processes, or raise after `JOIN`."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))  # for env://, where SLURM started the processes
    store = None
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        agent = TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=False, timeout=JOIN
        )
        store = PrefixStore(f"unsmooth/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", agent)
    dist.init_process_group(
        backend, init_method=None if store else "env://", store=store, rank=rank, world_size=world, timeout=JOIN
    )
    set_timeout = getattr(dist.distributed_c10d, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
    set_timeout(WORK, dist.group.WORLD)

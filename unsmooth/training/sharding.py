"""A model whose weights, gradients and optimizer state are split over processes (FSDP2).

Each block is gathered when it runs, and so is the rest of the model. Checkpoints hold whole tensors, so that a run
resumes with any number of processes. Validation, vitals and saved models use a copy of the model that has weights only
in the meantime: processes need not run the same number of batches then.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from timm.optim import create_optimizer_v2
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, first_line
from unsmooth.recipes.recipe import Recipe
from unsmooth.surgery.plan import anatomy_of
from unsmooth.utils.precision import whole
from unsmooth.utils.processes import Processes


def check_shardable(model: nn.Module, recipe: Recipe) -> None:
    """Raise if a run cannot be sharded, before anything is changed."""
    if recipe.amp == "float16":
        raise UnsmoothError(
            "shard (--shard) does not support amp=float16, whose loss scale is per process. Use amp=bfloat16."
        )
    scalar = next((name for name, parameter in model.named_parameters() if parameter.ndim == 0), None)
    if scalar is not None:
        raise UnsmoothError(f"shard (--shard) cannot split the scalar {scalar} over processes. Leave it out.")
    example = nn.Linear(160, 144)  # some optimizers keep less of large matrices only
    try:
        optimizer: torch.optim.Optimizer = create_optimizer_v2(example, recipe.optimizer, lr=1e-3)
        example(torch.ones(2, 160)).sum().backward()
        optimizer.step()
    except Exception:  # whatever is wrong with the optimizer, `make_optimizer` says it
        return
    for parameter, state in optimizer.state.items():
        odd = [name for name, value in state.items() if isinstance(value, Tensor) and not _alike(value, parameter)]
        if odd:
            raise UnsmoothError(
                f"shard (--shard) needs an optimizer whose state has the shape of the weights; {odd[0]} of "
                f"{recipe.optimizer} has another one. Use adamw, lamb or sgd."
            )


def block_names(model: nn.Module) -> list[str]:
    """Names of the blocks; none if the model takes more than images, which is then gathered as one."""
    try:
        return [block.name for block in anatomy_of(model).blocks]
    except UnsmoothError:
        return []


def shard(model: nn.Module, blocks: list[str], processes: Processes) -> None:
    """Split the parameters of a model over all processes, in place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # slow to import

    mesh = init_device_mesh(processes.device.type, (processes.world,))
    try:
        for module in dict.fromkeys(model.get_submodule(name) for name in blocks):
            fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
    except (ValueError, AssertionError, NotImplementedError) as error:  # parameters of several types, for instance
        raise UnsmoothError(f"the model cannot be sharded: {first_line(error)}. Leave out shard (--shard).") from error


def sync_gradients(model: nn.Module, sync: bool) -> None:
    """Whether the next backward pass sums the gradients of all processes."""
    setter: Any = getattr(model, "set_requires_gradient_sync", None)  # of FSDPModule
    if setter is not None:
        setter(sync)


class PlainCopy:
    """A copy of a model that is not sharded, with weights between `fill` and `empty` only.

    Args:
        model: The model before it is sharded.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)
        self.empty()

    def fill(self, sharded: nn.Module) -> nn.Module:
        """Gather the weights of a sharded model; every process must call it."""
        state = {name: whole(v.detach()) if isinstance(v, Tensor) else v for name, v in sharded.state_dict().items()}
        self.model.load_state_dict(state, assign=True)
        return self.model

    def empty(self) -> None:
        """Release the weights."""
        meta = {name: torch.empty_like(p, device="meta") for name, p in self.model.named_parameters()}
        self.model.load_state_dict(meta, strict=False, assign=True)


def gathered(state: Any, keep: bool) -> Any:
    """A state whose tensors are whole. Every process must call it; those that do not keep it get None for tensors."""
    if isinstance(state, Tensor):
        value = whole(state.detach())
        return value.cpu() if keep else None
    if isinstance(state, Mapping):
        return {key: gathered(item, keep) for key, item in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(gathered(item, keep) for item in state)
    return state


def scattered(state: Mapping[str, Any], like: nn.Module) -> dict[str, Any]:
    """A state dict of whole tensors, sharded as the parameters of a model are."""
    own = like.state_dict()
    return {name: _as(value, own[name]) if name in own else value for name, value in state.items()}


def scattered_optimizer(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state dict of an optimizer of whole tensors, sharded as its parameters are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    by_index = {
        index: {
            name: _as(value, parameters[index]) if isinstance(value, Tensor) and value.numel() != 1 else value
            for name, value in values.items()
        }
        for index, values in state["state"].items()
    }
    return {**state, "state": by_index}


def _alike(value: Tensor, parameter: Tensor) -> bool:
    return value.numel() == 1 or value.shape == parameter.shape


def _as(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, sharded as another one; each process keeps its part."""
    if not hasattr(like, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    layout: Any = like
    return distribute_tensor(value.to(like.device), layout.device_mesh, layout.placements, src_data_rank=None)

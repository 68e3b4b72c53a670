"""How a monitor learns of training steps: the images of a forward pass, and the steps of the optimizer.

Nothing is left after `remove`. A copy of the model, such as a moving average of its weights, is not monitored.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from unsmooth.errors import UnsmoothError

IMAGE_AXES = 4  # at least: batch, channels, height and width; videos have five


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Within the context, the model runs eagerly, also where it was compiled in place by `model.compile()`."""
    compiled = {m: m._compiled_call_impl for m in model.modules() if m._compiled_call_impl is not None}
    for module in compiled:
        module._compiled_call_impl = None
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call


def check_not_sharded(model: nn.Module) -> None:
    """Raise for FSDP, where one process alone cannot run the model."""
    if any(hasattr(p, "full_tensor") for p in model.parameters()) or "FullyShardedDataParallel" in {
        type(module).__name__ for module in model.modules()
    }:
        raise UnsmoothError(
            "the weights of this model are sharded over processes (FSDP), so the first process cannot run it alone. "
            "Call unsmooth.diagnose in all processes instead."
        )


class ImageHook:
    """Forward pre-hook that copies the first images of a training batch, and notes the precision of autocast.

    While torch.compile traces it, only the copy becomes part of the graph: no break, no recompilation. A copied or
    pickled hook does nothing.
    """

    def __init__(self, count: int, on_forward: Callable[[], None] | None = None) -> None:
        self.count = count
        self.on_forward = on_forward
        self.wanted = True
        self.images: Tensor | None = None
        self.autocast: torch.dtype | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.count == 0 or not module.training:
            return
        if torch.compiler.is_compiling():  # reads nothing that changes, which would compile the model again
            self._copy(args, kwargs)
            return
        if self.wanted:
            self._copy(args, kwargs)
        if self.on_forward is not None:
            self.on_forward()

    def _copy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= IMAGE_AXES:
                self.images = value[: self.count].detach().clone()
                kind = value.device.type
                self.autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
                return

    def take(self) -> Tensor | None:
        """The images, which are not kept."""
        images, self.images = self.images, None
        return images

    def __deepcopy__(self, memo: dict[int, Any]) -> ImageHook:
        return ImageHook(0)

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageHook, (0,)


class StepHook:
    """Hooks of all torch optimizers, which call `on_step` at each step of the one that trains the model.

    `on_step` is called before the update, or after it if the optimizer is given a closure that runs the model.
    """

    def __init__(self, model: nn.Module, on_step: Callable[[Optimizer], None]) -> None:
        self.parameters = {id(p) for p in model.parameters()}
        self.optimizer: weakref.ref[Optimizer] | None = None
        method = weakref.WeakMethod(on_step)  # the hooks of torch do not keep the monitor alive; the model does
        self.handles: list[Any] = []

        def hook(before: bool) -> Callable[..., None]:
            def run(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
                if before == (closure is None) and self.concerns(optimizer) and (call := method()) is not None:
                    call(optimizer)

            return run

        self.handles.append(register_optimizer_step_pre_hook(hook(True)))
        self.handles.append(register_optimizer_step_post_hook(hook(False)))

    def concerns(self, optimizer: Optimizer) -> bool:
        """Whether this is the first optimizer that was seen with parameters of the model."""
        if self.optimizer is None or self.optimizer() is None:
            if not any(id(p) in self.parameters for group in optimizer.param_groups for p in group["params"]):
                return False
            self.optimizer = weakref.ref(optimizer)
        return self.optimizer() is optimizer

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

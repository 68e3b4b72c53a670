"""The record of a treated model, stored on the model: the host's spec if known, its anatomy before the first remedy,
and its remedies in order. Also the checks whether a model can be treated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.seam.residual_sums import ResidualScale
from unsmooth.spec import ModelSpec, SpecItem

RECORD = "_unsmooth_record"


@dataclass(frozen=True)
class Attachment:
    """Where one patch is attached: enough to remove it, also from a copy of the model."""

    parent: str  # the module that has the patch as a child; "" is the model itself
    child: str  # "" for a residual sum, whose patch is not a module
    target: str  # the module that is hooked or patched
    residual: ResidualScale | None = None
    frozen: tuple[str, ...] = ()  # host parameters that it replaces, and that were trainable before

    @property
    def module(self) -> str:
        """The full name of the patch; "" for a residual sum."""
        return f"{self.parent}.{self.child}".lstrip(".") if self.child else ""


@dataclass(frozen=True)
class AppliedRemedy:
    """A remedy as applied: its spec, its blocks and its attachments."""

    remedy: SpecItem
    blocks: tuple[int, ...]
    attachments: tuple[Attachment, ...]


@dataclass
class Record:
    """Record of a model: its host, the host's anatomy, and the applied remedies in order."""

    host: SpecItem | None = None
    anatomy: Anatomy | None = None
    applied: list[AppliedRemedy] = field(default_factory=list)
    folded: tuple[str, ...] | None = None  # the remedies that `fold` folded; None: not a folded model


def record_of(model: nn.Module) -> Record:
    """The record of a model; a new, empty one if it has none."""
    record = model.__dict__.get(RECORD) if isinstance(model, nn.Module) else None
    return record if record is not None else Record()


def applied(model: nn.Module) -> ModelSpec:
    """Return the spec of a model: its host and its remedies.

    Args:
        model: Any model.

    Returns:
        The spec. Its string rebuilds the architecture if the host is known, that is, if the model was built from a
        spec; otherwise `host` is None.

    Example:
        >>> import unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+attn_scale")
        >>> str(unsmooth.applied(model))
        'vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+attn_scale'
    """
    record = record_of(model)
    return ModelSpec(record.host, tuple(entry.remedy for entry in record.applied))


def parts(model: nn.Module, remedy: str | None = None) -> Iterator[tuple[str, nn.Module]]:
    """Iterate over the modules that a remedy added to a model, for reading or setting learned parameters.

    Args:
        model: A treated model.
        remedy: Name of the remedy. Default: all remedies of the model.

    Yields:
        The full name and the module of each patch.

    Example:
        >>> import unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+attn_scale")
        >>> [(name, tuple(module.omega.shape)) for name, module in unsmooth.parts(model)]
        [('blocks.0.attn.unsmooth_attn_scale', (3,)), ('blocks.1.attn.unsmooth_attn_scale', (3,))]
    """
    for entry in record_of(model).applied:
        if remedy in (None, entry.remedy.name):
            for attachment in entry.attachments:
                if attachment.module:
                    yield attachment.module, model.get_submodule(attachment.module)


_WRAPPERS = {
    "DistributedDataParallel": "model.module, then wrap again",
    "DataParallel": "model.module, and DistributedDataParallel: replicas of DataParallel lose their patches",
    "FullyShardedDataParallel": "the model before it is sharded",
    "OptimizedModule": "the model before torch.compile (model._orig_mod), then compile again",
}


def check_unwrapped(model: Any) -> None:
    """Raise if `model` is not a module, or is or contains a wrapper such as DistributedDataParallel."""
    if not isinstance(model, nn.Module):
        raise UnsmoothError(
            f"expected a PyTorch module (got {type(model).__name__}). Build one with unsmooth.create_model(spec)."
        )
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind in _WRAPPERS:
            where = f" (at {name})" if name else ""
            raise UnsmoothError(f"this model is wrapped in {kind}{where}. Use {_WRAPPERS[kind]}.")


def check_model(model: Any) -> None:
    """Raise if a model cannot be treated: wrapped, compiled in place or TorchScript."""
    check_unwrapped(model)
    for module in model.modules():
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise UnsmoothError("this model was compiled in place by model.compile(). Treat it before compiling.")
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsmoothError("this model is TorchScript, whose forward cannot be patched. Treat the Python model.")


def check_whole(model: nn.Module) -> None:
    """Raise if a submodule was treated by itself: the record of the model does not include it."""
    for name, module in model.named_modules():
        if name and record_of(module).applied:
            raise UnsmoothError(
                f"{applied(module).remedies[0].name} was applied to the submodule {name!r}. Use that module."
            )


def check_unfolded(model: nn.Module) -> None:
    if record_of(model).folded is not None:
        raise UnsmoothError("this model is folded, for inference only. Use the model that was passed to fold().")

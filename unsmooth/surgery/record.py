"""What hangs on a treated model, written down on the model itself: its host's spec where known, the anatomy that it
had before the first remedy, and the remedies in order. And the checks that a model can be worked on at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.seam.patched import ResidualScale
from unsmooth.spec import ModelSpec, SpecItem

RECORD = "_unsmooth_record"
PREFIX = "unsmooth_"


@dataclass(frozen=True)
class Attachment:
    """One part as it was attached: enough to take it off again, also from a copy of the model."""

    home: str  # the module that holds the part as a child; "" is the model itself
    child: str  # "" for a join, which is no module
    at: str  # the module that is hooked or whose forward enters the seam
    join: ResidualScale | None = None
    frozen: tuple[str, ...] = ()  # host parameters that it makes idle, and that were trainable before


@dataclass(frozen=True)
class AppliedRemedy:
    """A remedy as applied: its spec, the blocks that it is on, and where its parts hang."""

    part: SpecItem
    blocks: tuple[int, ...]
    attachments: tuple[Attachment, ...]


@dataclass
class Record:
    host: SpecItem | None = None
    anatomy: Anatomy | None = None
    entries: list[AppliedRemedy] = field(default_factory=list)
    folded: tuple[str, ...] | None = None  # what `fold` folded; None: not a folded model


def record_of(model: nn.Module) -> Record:
    """The record of a model; a new, empty one where it has none."""
    found = model.__dict__.get(RECORD) if isinstance(model, nn.Module) else None
    return found if found is not None else Record()


def applied(model: nn.Module) -> ModelSpec:
    """What is on a model, as a spec: its string rebuilds the same model where the host's name is known."""
    record = record_of(model)
    return ModelSpec(record.host, tuple(entry.part for entry in record.entries))


def parts(model: nn.Module, remedy: str | None = None) -> Iterator[tuple[str, nn.Module]]:
    """The parts that hang on a model, by their full names: for reading or setting learned parameters."""
    for entry in record_of(model).entries:
        if remedy in (None, entry.part.name):
            for attachment in entry.attachments:
                if attachment.child:
                    name = f"{attachment.home}.{attachment.child}".lstrip(".")
                    yield name, model.get_submodule(name)


_WRAPPERS = {
    "DistributedDataParallel": "model.module, then wrap again",
    "DataParallel": "model.module, and use DistributedDataParallel: replicas of DataParallel lose their parts",
    "FullyShardedDataParallel": "the model before it is sharded",
    "OptimizedModule": "the model that was given to torch.compile (model._orig_mod), then compile again",
}


def check_unwrapped(model: Any) -> None:
    """Refuse what is no model itself but holds one, and say what to give instead."""
    if not isinstance(model, nn.Module):
        raise UnsmoothError(
            f"expected a PyTorch module, got {type(model).__name__}; build one with unsmooth.create_model(spec)"
        )
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind in _WRAPPERS:
            where = f" (at {name})" if name else ""
            raise UnsmoothError(f"this model is wrapped in {kind}{where}; give {_WRAPPERS[kind]}")


def check_model(model: Any) -> None:
    """Refuse what cannot be operated on, and say what can."""
    check_unwrapped(model)
    for module in model.modules():
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise UnsmoothError("this model was compiled in place by model.compile(); treat it before compiling")
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsmoothError("this model is TorchScript, whose forward is frozen; treat the Python model")


def check_whole(model: nn.Module) -> None:
    """Refuse a model of which only a part is treated: its record would not tell."""
    for name, module in model.named_modules():
        if name and record_of(module).entries:
            raise UnsmoothError(f"{applied(module).remedies[0].name} is on its part {name!r}; work on that module")


def check_unfolded(model: nn.Module) -> None:
    if record_of(model).folded is not None:
        raise UnsmoothError("this model is folded, for inference only; go back to the model that fold() was given")

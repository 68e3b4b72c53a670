"""Puts remedies on a model and takes them off again: check everything (`unsmooth.surgery.plan`), then change.

The host's own keys never change; a part is a child named `unsmooth_<remedy>` of the module that it acts on.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from torch import nn

from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import CONTAINERS, Anatomy
from unsmooth.hosts.inputs import Example
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.remedies.base import LinearPatch, Placement, TokenHook
from unsmooth.seam.patched import ResidualScale, module_patches, unpatch
from unsmooth.surgery.plan import Plan, prepare
from unsmooth.surgery.record import (
    PREFIX,
    RECORD,
    AppliedRemedy,
    Attachment,
    check_unfolded,
    check_unwrapped,
    record_of,
)


def apply(
    model: nn.Module, remedy: str, blocks: str | None = None, example: Example | None = None, **options: Any
) -> Plan:
    """Put a remedy on a model, in place. Nothing is changed unless everything fits.

    `remedy` is a name, or a name with options as in a model spec. `blocks` restricts it: "6:", "0,3,5", ":-2".
    `example` is one input for hosts that need a special one (keyword arguments; "image" goes by place).
    Blocks where it makes no sense are left out with a warning; if that is all of them, it raises.
    """
    done, part, chosen, placements, anatomy = prepare(model, remedy, blocks, example, options, dry=False)
    for index, why in done.refused.items():
        warnings.warn(f"{part.name} is not on block {index}: {why}", stacklevel=2)
    attachments: list[Attachment] = []
    try:
        for placement in placements:
            attachments.append(_attach(model, part.name, placement, anatomy))
    except BaseException:
        for attachment in reversed(attachments):
            _detach(model, attachment)
        raise
    record = record_of(model)
    record.anatomy = anatomy
    on = tuple(index for index in chosen if index not in done.refused)
    record.entries.append(AppliedRemedy(part, on, tuple(attachments)))
    model.__dict__[RECORD] = record
    return done


def remove(model: nn.Module, remedy: str | None = None) -> None:
    """Take a remedy off again (all of them, where none is named). The host is as it was, bit for bit."""
    check_unwrapped(model)
    check_unfolded(model)
    record = record_of(model)
    if remedy is not None:
        remedies.get(remedy)
    going = [a for a in record.entries if remedy in (None, a.part.name)]
    if not going:
        has = ", ".join(dict.fromkeys(a.part.name for a in record.entries)) or "none"
        raise UnsmoothError(f"there is nothing to remove: {remedy or 'a remedy'} is not on this model (it has: {has})")
    for entry in reversed(going):
        for attachment in reversed(entry.attachments):
            _detach(model, attachment)
        record.entries.remove(entry)
    if not record.entries:
        record.anatomy = None
        if record.host is None:
            model.__dict__.pop(RECORD, None)


def _attach(model: nn.Module, key: str, placement: Placement, anatomy: Anatomy) -> Attachment:
    """Hang one part on the model."""
    at = placement.at.module if isinstance(placement.at, HookPoint) else placement.at
    module, part = model.get_submodule(at), placement.part
    if isinstance(part, ResidualScale):
        found = module_patches(module)
        found.residuals.append(part)
        found.residual_branches = next(block.residuals for block in anatomy.blocks if block.name == at)
        return Attachment("", "", at, part)
    home = at
    while home and isinstance(model.get_submodule(home), CONTAINERS):
        home = home.rpartition(".")[0]  # a list of modules runs its children: no place for a part
    child = _child_name(model.get_submodule(home), key, placement)
    reference = next((p for p in module.parameters()), None)
    if reference is None:
        reference = next(model.parameters())
    part.to(device=reference.device, dtype=reference.dtype if reference.is_floating_point() else None)
    part.train(module.training)
    attachment = Attachment(home, child, at)
    model.get_submodule(home).add_module(child, part)
    try:
        if isinstance(part, TokenHook):
            assert isinstance(placement.at, HookPoint)
            hook = module.register_forward_pre_hook if placement.at.side == "input" else module.register_forward_hook
            hook(part, with_kwargs=True)
        elif isinstance(part, LinearPatch):
            module_patches(module).linears.append((placement.weight.removeprefix(at + "."), part))
            attachment = replace(attachment, frozen=_freeze(model, placement.weight))
        else:
            module_patches(module).attention.append(part)
    except BaseException:
        _detach(model, attachment)
        raise
    return attachment


def _child_name(home: nn.Module, key: str, placement: Placement) -> str:
    """`unsmooth_<remedy>`, told apart by the host's weight, the branch or a number where there are several."""
    if placement.weight:
        path = placement.weight.removeprefix(f"{placement.at}.").removesuffix("weight").strip("._")
        return f"{PREFIX}{key}_{path.replace('.', '_')}"
    names = [
        f"{PREFIX}{key}",
        f"{PREFIX}{key}_{placement.role}",
        *(f"{PREFIX}{key}_{placement.role}{i}" for i in range(2, 9)),
    ]
    return next(name for name in names if name not in home._modules)


def _freeze(model: nn.Module, weight: str) -> tuple[str, ...]:
    """Stop the gradients of a weight and bias that a stand-in makes idle; the names of those that had some."""
    layer = weight.rpartition(".")[0]
    idle = [weight, weight.removesuffix("weight") + "bias"]
    if layer.endswith("qkv"):  # BEiT and EVA keep the biases of queries and values beside the layer
        idle += [f"{layer.rpartition('.')[0]}.{name}" for name in ("q_bias", "v_bias")]
    own = dict(model.named_parameters())
    frozen = tuple(name for name in idle if name in own and own[name].requires_grad)
    for name in frozen:
        own[name].requires_grad_(False)
    return frozen


def _detach(model: nn.Module, attachment: Attachment) -> None:
    """Take one part off again; one whose module is gone from the model went with it."""
    if attachment.at not in dict(model.named_modules()):
        return
    module = model.get_submodule(attachment.at)
    if attachment.join is not None:
        module_patches(module).residuals = [
            join for join in module_patches(module).residuals if join is not attachment.join
        ]
        unpatch(module)
        return
    home = model.get_submodule(attachment.home)
    part = home.get_submodule(attachment.child)
    for hooks, flags in ((module._forward_hooks, module._forward_hooks_with_kwargs),
                         (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)):  # fmt: skip
        for key in [key for key, hook in hooks.items() if hook is part]:
            del hooks[key]
            flags.pop(key, None)
    found = module.__dict__.get("_unsmooth_patches")
    if found is not None:
        found.attention = [other for other in found.attention if other is not part]
        found.linears = [(path, other) for path, other in found.linears if other is not part]
        unpatch(module)
    for name in attachment.frozen:
        model.get_parameter(name).requires_grad_(True)
    del home._modules[attachment.child]

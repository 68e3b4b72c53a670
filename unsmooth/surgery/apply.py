"""Applies remedies to a model and removes them: check everything (`unsmooth.surgery.plan`), then change.

The keys of the host never change. A patch is a child named `unsmooth_<remedy>` of the module that it acts on.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.hosts.examine import CONTAINERS
from unsmooth.hosts.inputs import Example
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.remedies.base import FromHost, FromModel, LinearPatch, Placement, ResidualPatch, TokenHook, WeightPatch
from unsmooth.seam.patched import PREFIX, ModulePatches, is_outermost, module_patches, unpatch
from unsmooth.seam.residual_sums import ResidualScale
from unsmooth.spec import SpecItem
from unsmooth.surgery.plan import Plan, check_applicable, prepare
from unsmooth.surgery.record import (
    RECORD,
    AppliedRemedy,
    Attachment,
    check_unfolded,
    check_unwrapped,
    record_of,
)


def apply(
    model: nn.Module, remedy: str | SpecItem, blocks: str | None = None, example: Example | None = None, **options: Any
) -> Plan:
    """Apply a remedy to a model, in place.

    Everything is checked before anything is changed. Blocks that the remedy does not fit are skipped with a warning.

    Args:
        model: A host or a treated model.
        remedy: Name of a remedy, optionally with options: `"no_skip(branch=mlp)"`.
        blocks: Blocks to treat: `"6:"`, `":-2"`, `"0,3,5"` or `"4"`. Default: all.
        example: One input of the host, as keyword arguments; `image` is passed by position. Default: an image of noise.
        **options: Options of the remedy, on top of those in `remedy`.

    Returns:
        The plan that was carried out.

    Raises:
        UnsmoothError: The remedy, an option or a block does not exist, the remedy conflicts with an applied one, or
            it fits no block (`NotApplicable`). The model is unchanged.

    Example:
        >>> import unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)")
        >>> plan = unsmooth.apply(model, "context_broadcast", blocks="1:", kind="scaled")
        >>> plan.sites
        ('blocks.1.mlp',)
        >>> [str(remedy) for remedy in unsmooth.applied(model).remedies]
        ['context_broadcast(kind=scaled, blocks=1:)']
    """
    with torch.inference_mode(False):  # parameters that are made in inference mode cannot be trained
        return _apply(model, remedy, blocks, example, options)


def _apply(
    model: nn.Module, remedy: str | SpecItem, blocks: str | None, example: Example | None, options: dict[str, Any]
) -> Plan:
    operation = prepare(model, remedy, blocks, example, options)
    check_applicable(operation)
    for index, reason in operation.plan.refused.items():
        warnings.warn(f"{operation.remedy.name} is not applied to block {index}: {reason}", stacklevel=3)
    attachments: list[Attachment] = []
    try:
        for placement in operation.placements:
            attachments.append(_attach(model, operation.remedy.name, placement, operation.anatomy))
    except BaseException:
        for attachment in reversed(attachments):
            _detach(model, attachment)
        raise
    record = record_of(model)
    record.anatomy = operation.anatomy
    record.applied.append(AppliedRemedy(operation.remedy, operation.blocks, tuple(attachments)))
    model.__dict__[RECORD] = record
    return operation.plan


def remove(model: nn.Module, remedy: str | None = None) -> None:
    """Remove a remedy from a model, in place. The host is restored bit for bit.

    Args:
        model: A treated model.
        remedy: Name of the remedy. Default: all remedies of the model.

    Raises:
        UnsmoothError: The remedy does not exist or is not on the model.

    Example:
        >>> import unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+attn_scale")
        >>> unsmooth.remove(model, "attn_scale")
        >>> unsmooth.applied(model).remedies
        ()
    """
    check_unwrapped(model)
    check_unfolded(model)
    record = record_of(model)
    if remedy is not None:
        remedies.get(remedy)
    removed = [entry for entry in record.applied if remedy in (None, entry.remedy.name)]
    if not removed:
        names = ", ".join(dict.fromkeys(entry.remedy.name for entry in record.applied)) or "none"
        raise UnsmoothError(
            f"there is nothing to remove: {remedy or 'a remedy'} is not on this model (it has: {names})"
        )
    _check_detachable(model, removed)
    for entry in reversed(removed):
        for attachment in reversed(entry.attachments):
            _detach(model, attachment)
        record.applied.remove(entry)
    if not record.applied:
        record.anatomy = None
        if record.host is None:
            model.__dict__.pop(RECORD, None)


def _check_detachable(model: nn.Module, removed: list[AppliedRemedy]) -> None:
    """Raise if the class of a patched module was changed later, as `torch.nn.utils.parametrize` does."""
    modules = dict(model.named_modules())
    for target in (attachment.target for entry in removed for attachment in entry.attachments):
        if target in modules and not is_outermost(modules[target]):
            raise UnsmoothError(
                f"{target} was parametrised after a remedy was applied. Remove the parametrisation first: "
                "torch.nn.utils.parametrize.remove_parametrizations."
            )


def _attach(model: nn.Module, key: str, placement: Placement, anatomy: Anatomy) -> Attachment:
    """Attach one patch to the model."""
    point, patch = placement.target, placement.patch
    target = point.module if isinstance(point, HookPoint) else point
    module = model.get_submodule(target)
    if isinstance(patch, ResidualScale):
        _residual_patches(module, anatomy, target).residuals.append(patch)
        return Attachment("", "", target, patch)
    parent = target
    while parent and isinstance(model.get_submodule(parent), CONTAINERS):
        parent = parent.rpartition(".")[0]  # a container runs its children, so a patch cannot be one of them
    child = _child_name(model.get_submodule(parent), key, placement)
    reference = next(module.parameters(), None)
    if reference is None:
        reference = next(model.parameters())
    patch.to(device=reference.device, dtype=reference.dtype if reference.is_floating_point() else None)
    patch.train(module.training)
    attachment = Attachment(parent, child, target)
    model.get_submodule(parent).add_module(child, patch)
    try:
        if isinstance(patch, TokenHook):
            assert isinstance(point, HookPoint)
            if point.side == "input":
                module.register_forward_pre_hook(patch, with_kwargs=True)
            else:
                module.register_forward_hook(patch, with_kwargs=patch.reads_source)
        elif isinstance(patch, LinearPatch):
            module_patches(module).linears.append((placement.weight.removeprefix(target + "."), patch))
            attachment = replace(attachment, frozen=_freeze(model, placement.weight))
        elif isinstance(patch, WeightPatch):
            module_patches(module).linears.append((placement.weight.removeprefix(target + "."), patch))
        elif isinstance(patch, ResidualPatch):
            _residual_patches(module, anatomy, target).changes.append((placement.branch, patch))
        else:
            patches = module_patches(module)
            patches.attention.append(patch)
            patches.layouts = anatomy.layouts(target)
        _start(model, module, patch)
    except BaseException:
        _detach(model, attachment)
        raise
    return attachment


def _residual_patches(module: nn.Module, anatomy: Anatomy, target: str) -> ModulePatches:
    """The patches of a module, which know its residual sums."""
    patches = module_patches(module)
    patches.residual_branches = anatomy.residual_branches(target)
    patches.stream_on_left = target in anatomy.stream_on_left
    return patches


def _start(model: nn.Module, module: nn.Module, patch: nn.Module) -> None:
    """Set the initial parameters of a patch that starts from weights of the host, or what it keeps of the model."""
    if isinstance(patch, WeightPatch):
        path = next(path for path, other in module_patches(module).linears if other is patch)
        patch.start_from(attrgetter(path)(module))
    elif isinstance(patch, FromHost):
        patch.start_from(module)
    elif isinstance(patch, FromModel):
        patch.start_from_model(model)


def start_again(model: nn.Module, kind: type = object) -> None:
    """Set the patches of a kind that start from the host again, after its weights were replaced."""
    for entry in record_of(model).applied:
        for attachment in entry.attachments:
            if attachment.module and isinstance(patch := model.get_submodule(attachment.module), kind):
                _start(model, model.get_submodule(attachment.target), patch)


def _child_name(parent: nn.Module, key: str, placement: Placement) -> str:
    """`unsmooth_<remedy>`, with the host's weight, the attention, the branch or a number if there are several."""
    if placement.weight:
        path = placement.weight.removeprefix(f"{placement.target}.").removesuffix("weight").strip("._")
        return f"{PREFIX}{key}_{path.replace('.', '_')}"
    order = getattr(placement.patch, "attention_order", 0)
    names = [
        f"{PREFIX}{key}_{order + 1}" if order else f"{PREFIX}{key}",
        f"{PREFIX}{key}_{placement.branch}",
        *(f"{PREFIX}{key}_{placement.branch}{i}" for i in range(2, 9)),
    ]
    return next(name for name in names if name not in parent._modules)


def _freeze(model: nn.Module, weight: str) -> tuple[str, ...]:
    """Freeze a weight and bias that a patch replaces, and return the names of those that were trainable."""
    layer = weight.rpartition(".")[0]
    unused = [weight, weight.removesuffix("weight") + "bias"]
    if layer.endswith("qkv"):  # BEiT and EVA keep the biases of queries and values outside the layer
        unused += [f"{layer.rpartition('.')[0]}.{name}" for name in ("q_bias", "v_bias")]
    parameters = dict(model.named_parameters())
    frozen = tuple(name for name in unused if name in parameters and parameters[name].requires_grad)
    for name in frozen:
        parameters[name].requires_grad_(False)
    return frozen


def _detach(model: nn.Module, attachment: Attachment) -> None:
    """Remove one patch. A patch whose target was removed from the model is gone already."""
    if attachment.target not in dict(model.named_modules()):
        return
    module = model.get_submodule(attachment.target)
    if attachment.residual is not None:
        patches = module_patches(module)
        patches.residuals = [residual for residual in patches.residuals if residual is not attachment.residual]
        unpatch(module)
        return
    parent = model.get_submodule(attachment.parent)
    detach_patch(module, parent.get_submodule(attachment.child))
    for name in attachment.frozen:
        model.get_parameter(name).requires_grad_(True)
    del parent._modules[attachment.child]


def detach_patch(module: nn.Module, patch: nn.Module) -> None:
    """Take a patch out of the forward pass of the module that it acts on. It stays a child of its parent."""
    for hooks, flags in ((module._forward_hooks, module._forward_hooks_with_kwargs),
                         (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)):  # fmt: skip
        for key in [key for key, hook in hooks.items() if hook is patch]:
            del hooks[key]
            flags.pop(key, None)
    if "_unsmooth_patches" in module.__dict__:
        patches = module_patches(module)
        patches.attention = [other for other in patches.attention if other is not patch]
        patches.linears = [(path, other) for path, other in patches.linears if other is not patch]
        patches.changes = [(branch, other) for branch, other in patches.changes if other is not patch]
        unpatch(module)

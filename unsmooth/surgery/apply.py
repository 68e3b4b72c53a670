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
from unsmooth.hosts.patch_embed import Port
from unsmooth.remedies.base import LinearPart, Placement, Tap
from unsmooth.seam.patched import Join, fittings, release
from unsmooth.surgery.plan import Plan, prepare
from unsmooth.surgery.record import PREFIX, RECORD, Application, Fixture, check_unfolded, check_unwrapped, record_of


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
    fixtures: list[Fixture] = []
    try:
        for placement in placements:
            fixtures.append(_attach(model, part.name, placement, anatomy))
    except BaseException:
        for fixture in reversed(fixtures):
            _detach(model, fixture)
        raise
    record = record_of(model)
    record.anatomy = anatomy
    on = tuple(index for index in chosen if index not in done.refused)
    record.applications.append(Application(part, on, tuple(fixtures)))
    model.__dict__[RECORD] = record
    return done


def remove(model: nn.Module, remedy: str | None = None) -> None:
    """Take a remedy off again (all of them, where none is named). The host is as it was, bit for bit."""
    check_unwrapped(model)
    check_unfolded(model)
    record = record_of(model)
    if remedy is not None:
        remedies.get(remedy)
    going = [a for a in record.applications if remedy in (None, a.part.name)]
    if not going:
        has = ", ".join(dict.fromkeys(a.part.name for a in record.applications)) or "none"
        raise UnsmoothError(f"there is nothing to remove: {remedy or 'a remedy'} is not on this model (it has: {has})")
    for application in reversed(going):
        for fixture in reversed(application.fixtures):
            _detach(model, fixture)
        record.applications.remove(application)
    if not record.applications:
        record.anatomy = None
        if record.host is None:
            model.__dict__.pop(RECORD, None)


def _attach(model: nn.Module, key: str, placement: Placement, anatomy: Anatomy) -> Fixture:
    """Hang one part on the model."""
    at = placement.at.module if isinstance(placement.at, Port) else placement.at
    module, part = model.get_submodule(at), placement.part
    if isinstance(part, Join):
        found = fittings(module)
        found.joins.append(part)
        found.order = next(block.joins for block in anatomy.blocks if block.name == at)
        return Fixture("", "", at, part)
    home = at
    while home and isinstance(model.get_submodule(home), CONTAINERS):
        home = home.rpartition(".")[0]  # a list of modules runs its children: no place for a part
    child = _child_name(model.get_submodule(home), key, placement)
    reference = next((p for p in module.parameters()), None)
    if reference is None:
        reference = next(model.parameters())
    part.to(device=reference.device, dtype=reference.dtype if reference.is_floating_point() else None)
    part.train(module.training)
    fixture = Fixture(home, child, at)
    model.get_submodule(home).add_module(child, part)
    try:
        if isinstance(part, Tap):
            assert isinstance(placement.at, Port)
            hook = module.register_forward_pre_hook if placement.at.side == "input" else module.register_forward_hook
            hook(part, with_kwargs=True)
        elif isinstance(part, LinearPart):
            fittings(module).linears.append((placement.weight.removeprefix(at + "."), part))
            fixture = replace(fixture, frozen=_freeze(model, placement.weight))
        else:
            fittings(module).attention.append(part)
    except BaseException:
        _detach(model, fixture)
        raise
    return fixture


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


def _detach(model: nn.Module, fixture: Fixture) -> None:
    """Take one part off again; one whose module is gone from the model went with it."""
    if fixture.at not in dict(model.named_modules()):
        return
    module = model.get_submodule(fixture.at)
    if fixture.join is not None:
        fittings(module).joins = [join for join in fittings(module).joins if join is not fixture.join]
        release(module)
        return
    home = model.get_submodule(fixture.home)
    part = home.get_submodule(fixture.child)
    for hooks, flags in ((module._forward_hooks, module._forward_hooks_with_kwargs),
                         (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)):  # fmt: skip
        for key in [key for key, hook in hooks.items() if hook is part]:
            del hooks[key]
            flags.pop(key, None)
    found = module.__dict__.get("_unsmooth_fittings")
    if found is not None:
        found.attention = [other for other in found.attention if other is not part]
        found.linears = [(path, other) for path, other in found.linears if other is not part]
        release(module)
    for name in fixture.frozen:
        model.get_parameter(name).requires_grad_(True)
    del home._modules[fixture.child]

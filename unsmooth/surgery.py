"""Puts remedies on a model and takes them off again: check everything, then change.

What hangs on a treated model is written down in one `Record` on the model: its host's spec where known, the
anatomy it had before the first remedy, and the remedies in order. The host's own keys never change; a part is
a child named `unsmooth_<remedy>` of the module that it acts on.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth import remedies
from unsmooth.anatomy import CONTAINERS, Anatomy, Block, Port, examine
from unsmooth.errors import Refusal, UnsmoothError
from unsmooth.hosts import Example
from unsmooth.remedies.base import LinearPart, Placement, Remedy, Tap
from unsmooth.spec import ModelSpec, Part, parse_part
from unsmooth.treatment import Join, fittings, release

RECORD = "_unsmooth_record"
PREFIX = "unsmooth_"


@dataclass(frozen=True)
class Fixture:
    """One part as it was attached: enough to take it off again, also from a copy of the model."""

    home: str  # the module that holds the part as a child; "" is the model itself
    child: str  # "" for a join, which is no module
    at: str  # the module that is hooked or whose forward enters the seam
    join: Join | None = None
    weight: str = ""
    frozen: tuple[str, ...] = ()  # host parameters that it makes idle, and that were trainable before


@dataclass(frozen=True)
class Application:
    """A remedy as applied: its spec, the blocks that it is on, and where its parts hang."""

    part: Part
    options: dict[str, Any]
    blocks: tuple[int, ...]
    fixtures: tuple[Fixture, ...]


@dataclass
class Record:
    host: Part | None = None
    anatomy: Anatomy | None = None
    applications: list[Application] = field(default_factory=list)
    folded: tuple[str, ...] | None = None  # what `fold` folded; None: not a folded model


@dataclass(frozen=True)
class BlockPlan:
    """What a remedy would do in one block: new parameters and operations, or the reason why not."""

    block: int
    name: str
    sites: tuple[str, ...] = ()
    parameters: int = 0
    flops: int = 0
    refusal: str = ""


@dataclass(frozen=True)
class Plan:
    """A dry run of one remedy on one model."""

    remedy: Part
    blocks: tuple[BlockPlan, ...]
    exact: bool

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(site for block in self.blocks for site in block.sites)

    @property
    def parameters(self) -> int:
        return sum(block.parameters for block in self.blocks)

    @property
    def flops(self) -> int:
        """Operations added for one image; a multiply-add counts as two."""
        return sum(block.flops for block in self.blocks)

    @property
    def refused(self) -> dict[int, str]:
        return {block.block: block.refusal for block in self.blocks if block.refusal}

    def __str__(self) -> str:
        start = "outputs unchanged at its start" if self.exact else "changes the outputs at once"
        cost = f"{self.parameters:,} new parameters, {self.flops / 1e6:,.1f} MFLOPs an image"
        text = f"{self.remedy}: {len(self.sites)} sites, {cost}; {start}"
        return "\n".join([text, *(f"  not on block {i}: {why}" for i, why in self.refused.items())])


def plan(
    model: nn.Module, remedy: str, blocks: str | None = None, example: Example | None = None, **options: Any
) -> Plan:
    """What `apply` would do, without doing it: sites, new parameters, operations, refusals."""
    return _prepare(model, remedy, blocks, example, options, dry=True)[0]


def apply(
    model: nn.Module, remedy: str, blocks: str | None = None, example: Example | None = None, **options: Any
) -> Plan:
    """Put a remedy on a model, in place. Nothing is changed unless everything fits.

    `remedy` is a name, or a name with options as in a model spec. `blocks` restricts it: "6:", "0,3,5", ":-2".
    `example` is one input for hosts that need a special one (keyword arguments; "image" goes by place).
    Blocks where it makes no sense are left out with a warning; if that is all of them, it raises.
    """
    done, part, chosen, placements, anatomy = _prepare(model, remedy, blocks, example, options, dry=False)
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
    resolved = remedies.get(part.name).read({k: v for k, v in part.options.items() if k != "blocks"})
    record = record_of(model)
    record.anatomy = anatomy
    on = tuple(index for index in chosen if index not in done.refused)
    record.applications.append(Application(part, resolved, on, tuple(fixtures)))
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


def applied(model: nn.Module) -> ModelSpec:
    """What is on a model, as a spec: its string rebuilds the same model where the host's name is known."""
    record = record_of(model)
    return ModelSpec(record.host, tuple(application.part for application in record.applications))


def record_of(model: nn.Module) -> Record:
    """The record of a model; a new, empty one where it has none."""
    found = model.__dict__.get(RECORD) if isinstance(model, nn.Module) else None
    return found if found is not None else Record()


def parts(model: nn.Module, remedy: str | None = None) -> Iterator[tuple[str, nn.Module]]:
    """The parts that hang on a model, by their full names: for reading or setting learned parameters."""
    for application in record_of(model).applications:
        if remedy in (None, application.part.name):
            for fixture in application.fixtures:
                if fixture.child:
                    name = f"{fixture.home}.{fixture.child}".lstrip(".")
                    yield name, model.get_submodule(name)


def anatomy_of(model: nn.Module, example: Example | None = None) -> Anatomy:
    """A model's anatomy: as recorded before its first remedy, or read off a forward pass now."""
    check_model(model)
    recorded = record_of(model).anatomy
    if recorded is not None:
        return recorded
    if isinstance(example, Mapping) and any(isinstance(x, Tensor) and x.shape[:1] != (1,) for x in example.values()):
        raise UnsmoothError("an example is one image, and this one is a batch; pass example={'image': images[:1]}")
    try:
        return examine(model, example)
    except UnsmoothError:
        raise
    except Exception as error:  # a host may fail in any way on an input that it was not made for
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UnsmoothError(
            f"could not run {type(model).__name__} on one example image ({reason}); pass example={{'image': …}}"
        ) from error


def select_blocks(text: str | None, count: int) -> list[int]:
    """The block numbers that "6:", "0,3,5", ":-2" or "-1" mean in a model of `count` blocks."""
    if text is None:
        return list(range(count))
    chosen: list[int] = []
    for item in str(text).split(","):
        match = re.fullmatch(r"\s*(-?\d+)?\s*(?:(:)\s*(-?\d+)?)?\s*", item)
        if not match or not (match[1] or match[2]):
            raise UnsmoothError(f"cannot read blocks={text!r}: write '6:', ':-2', '0,3,5' or '4'")
        if match[2]:
            span = range(count)[slice(*(int(g) if g else None for g in (match[1], match[3])))]
            chosen += [i for i in span if i not in chosen]
            continue
        index = int(match[1])
        if not -count <= index < count:
            raise UnsmoothError(
                f"blocks={text!r}: there is no block {index}; this model has {count}, from 0 to {count - 1}"
            )
        chosen += [i for i in [index % count] if i not in chosen]
    if not chosen:
        raise UnsmoothError(f"blocks={text!r} selects no block of {count}")
    return sorted(chosen)


_WRAPPERS = {
    "DistributedDataParallel": "model.module, then wrap again",
    "DataParallel": "model.module, then wrap again",
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


def check_unfolded(model: nn.Module) -> None:
    if record_of(model).folded is not None:
        raise UnsmoothError("this model is folded, for inference only; go back to the model that fold() was given")


def _prepare(model: nn.Module, text: str, blocks: str | None, example: Example | None, options: dict[str, Any],
             dry: bool) -> tuple[Plan, Part, list[int], list[Placement], Anatomy]:  # fmt: skip
    check_model(model)
    check_unfolded(model)
    part = parse_part(text)
    remedy = remedies.get(part.name)
    given = {**part.options, **options}
    blocks = given.pop("blocks", None) if blocks is None else blocks
    given.pop("blocks", None)
    resolved = remedy.read(given)
    if remedy.once and blocks is not None:
        raise UnsmoothError(f"{remedy.key} acts once, on the patch tokens; it takes no blocks, so leave them out")
    anatomy = anatomy_of(model, example)
    chosen = [0] if remedy.once else select_blocks(blocks, len(anatomy.blocks))
    _check_neighbours(record_of(model), remedy, chosen)
    device = torch.device("meta") if dry else torch.device("cpu")
    plans: list[BlockPlan] = []
    placements: list[Placement] = []
    for index in chosen:
        block = anatomy.blocks[index]
        try:
            with device:
                placed = remedy.place(block, anatomy, resolved)
        except Refusal as refusal:
            plans.append(BlockPlan(index, block.name, refusal=str(refusal)))
            continue
        placements += placed
        plans.append(_block_plan(index, block, anatomy, remedy, resolved, placed))
    if not placements and not dry:
        reasons = "; ".join(dict.fromkeys(plan.refusal for plan in plans))
        raise Refusal(f"{remedy.key} makes no sense on this model: {reasons}")
    kept = dict(given) if blocks is None or remedy.once else {**given, "blocks": _as_text(blocks)}
    part = Part(part.name, kept)
    return Plan(part, tuple(plans), remedy.exact(resolved)), part, chosen, placements, anatomy


def _as_text(blocks: Any) -> Any:
    return blocks if isinstance(blocks, int) else str(blocks)


def _block_plan(index: int, block: Block, anatomy: Anatomy, remedy: Remedy, options: dict[str, Any],
                placed: list[Placement]) -> BlockPlan:  # fmt: skip
    sites = tuple(p.weight or (p.at.module if isinstance(p.at, Port) else p.at) for p in placed)
    count = sum(q.numel() for p in placed if isinstance(p.part, nn.Module) for q in p.part.parameters())
    return BlockPlan(index, block.name, sites, count, remedy.flops(block, anatomy, options))


def _check_neighbours(record: Record, remedy: Remedy, chosen: list[int]) -> None:
    for application in record.applications:
        shared = sorted(set(application.blocks) & set(chosen))
        if not shared:
            continue
        where = "" if remedy.once else f" on block{'s' if len(shared) > 1 else ''} {', '.join(map(str, shared))}"
        if application.part.name == remedy.key:
            raise UnsmoothError(f"{remedy.key} is already applied{where}; remove(model, {remedy.key!r}) first")
        other = remedies.get(application.part.name)
        if other.key in remedy.conflicts or remedy.key in other.conflicts:
            raise UnsmoothError(
                f"{remedy.key} and {other.key} both replace the scores{where}; remove(model, {other.key!r}) first"
            )


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
    model.get_submodule(home).add_module(child, part)
    frozen: tuple[str, ...] = ()
    if isinstance(part, Tap):
        assert isinstance(placement.at, Port)
        if placement.at.side == "input":
            module.register_forward_pre_hook(part, with_kwargs=True)
        else:
            module.register_forward_hook(part, with_kwargs=True)
    elif isinstance(part, LinearPart):
        fittings(module).linears.append((placement.weight.removeprefix(at + "."), part))
        frozen = _freeze(model, placement.weight)
    else:
        fittings(module).attention.append(part)
    return Fixture(home, child, at, weight=placement.weight, frozen=frozen)


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
    """Take one part off again."""
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

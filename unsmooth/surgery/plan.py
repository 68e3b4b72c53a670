"""Plans: what a remedy would do to a model, checked completely before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from markupsafe import Markup
from torch import Tensor, nn

from unsmooth import remedies
from unsmooth.errors import NotApplicable, UnsmoothError, first_line
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.examine import examine
from unsmooth.hosts.inputs import Example
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.hosts.unseen import way_out
from unsmooth.remedies.base import REPLACE_SCORES, AttentionPatch, Placement, Remedy, ResidualPatch
from unsmooth.seam.residual_sums import ResidualScale
from unsmooth.spec import SpecItem, parse_item
from unsmooth.surgery.record import Record, check_model, check_unfolded, check_whole, record_of
from unsmooth.utils.notebook import data_frame, document, frame, table

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class BlockPlan:
    """Effect of a remedy on one block: new parameters and operations, or the reason why it does not fit."""

    block: int
    name: str
    sites: tuple[str, ...] = ()
    parameters: int = 0
    flops: int = 0
    refusal: str = ""
    partly: str = ""  # why the remedy does not fit some of several attentions


@dataclass(frozen=True)
class Plan:
    """A dry run of one remedy on one model.

    Attributes:
        remedy: The remedy with its options.
        blocks: The plan of each selected block.
        exact: Whether the outputs of a pretrained host stay the same when the remedy is applied.
    """

    remedy: SpecItem
    blocks: tuple[BlockPlan, ...]
    exact: bool

    @property
    def sites(self) -> tuple[str, ...]:
        """The modules and weights that would be patched."""
        return tuple(site for block in self.blocks for site in block.sites)

    @property
    def parameters(self) -> int:
        """The number of new parameters."""
        return sum(block.parameters for block in self.blocks)

    @property
    def flops(self) -> int:
        """Operations added per image. A multiply-add counts as two."""
        return sum(block.flops for block in self.blocks)

    @property
    def refused(self) -> dict[int, str]:
        """The blocks that the remedy does not fit, or fits in part, with the reasons."""
        reasons = ((block.block, block.refusal or block.partly) for block in self.blocks)
        return {index: reason for index, reason in reasons if reason}

    def frame(self) -> pandas.DataFrame:
        """The plan as a pandas table, one row per block.

        Raises:
            UnsmoothError: If pandas is not installed.
        """
        names = ("block", "name", "sites", "parameters", "flops", "refusal")
        rows = [{name: getattr(block, name) for name in names} | {"sites": len(block.sites)} for block in self.blocks]
        return data_frame(rows, names, "block")

    def _repr_html_(self) -> str:
        """The plan as a table in a frame, for notebooks."""
        rows = [
            (block.block, ", ".join(block.sites), f"{block.parameters:,}", f"{block.flops / 1e6:,.1f}", block.refusal)
            for block in self.blocks
        ]
        columns = ("block", "sites", "new parameters", "MFLOPs per image", "not applicable")
        body = Markup("<p>{}</p>{}").format(str(self).splitlines()[0], table(columns, rows))
        return frame(document(str(self.remedy), body), min(420, 90 + 28 * len(rows)))

    def __str__(self) -> str:
        nearly = "nearly " if remedies.get(self.remedy.name).start_error > Remedy.start_error else ""
        start = f"outputs {nearly}unchanged when applied" if self.exact else "changes the outputs at once"
        cost = f"{self.parameters:,} new parameters, {self.flops / 1e6:,.1f} MFLOPs per image"
        summary = f"{self.remedy}: {len(self.sites)} sites, {cost}; {start}"
        return "\n".join(
            [summary, *(f"  not applicable to block {index}: {reason}" for index, reason in self.refused.items())]
        )


@dataclass(frozen=True)
class Operation:
    """A plan with everything that is needed to carry it out: the patches, their targets and the host's anatomy."""

    plan: Plan
    placements: tuple[Placement, ...]
    anatomy: Anatomy

    @property
    def remedy(self) -> SpecItem:
        return self.plan.remedy

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks that get patches."""
        return tuple(block.block for block in self.plan.blocks if not block.refusal)


@dataclass(frozen=True)
class Fit:
    """Whether a remedy can be applied to a model: its plan, and the reason why not (empty if it can)."""

    remedy: SpecItem
    plan: Plan | None
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


def plan(
    model: nn.Module, remedy: str | SpecItem, blocks: str | None = None, example: Example | None = None, **options: Any
) -> Plan:
    """Return what `apply` would do, without changing the model.

    Args:
        model: A host or a treated model.
        remedy: Name of a remedy, optionally with options: `"no_skip(branch=mlp)"`.
        blocks: Blocks to treat: `"6:"`, `":-2"`, `"0,3,5"` or `"4"`. Default: all.
        example: One input of the host, as keyword arguments; `image` is passed by position. Default: an image of noise.
        **options: Options of the remedy, on top of those in `remedy`.

    Returns:
        The sites, new parameters and operations of the remedy, and the blocks that it does not fit with the reasons.

    Raises:
        UnsmoothError: The remedy, an option or a block does not exist, or the remedy conflicts with an applied one.

    Example:
        >>> import unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)")
        >>> print(unsmooth.plan(model, "attn_scale"))
        attn_scale: 2 sites, 6 new parameters, 0.0 MFLOPs per image; outputs unchanged when applied
        >>> unsmooth.plan(model, "feat_scale", blocks="1").parameters
        384
    """
    return prepare(model, remedy, blocks, example, options, device="meta").plan


def fit(model: nn.Module, remedy: str | SpecItem, anatomy: Anatomy | None = None) -> Fit:
    """Whether a remedy can be applied to a model: it exists, has these options, and fits at least one block.

    A known anatomy saves a forward pass.
    """
    item = remedy if isinstance(remedy, SpecItem) else parse_item(remedy)
    try:
        planned = prepare(model, item, device="meta", anatomy=anatomy).plan
    except UnsmoothError as error:
        return Fit(item, None, str(error))
    return Fit(item, planned, "" if planned.sites else _reasons(planned))


def _reasons(planned: Plan) -> str:
    return "; ".join(dict.fromkeys(planned.refused.values()))


def prepare(
    model: nn.Module,
    remedy: str | SpecItem,
    blocks: str | None = None,
    example: Example | None = None,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
    anatomy: Anatomy | None = None,
) -> Operation:
    """Check a remedy on a model and build its patches on `device`; "meta" builds them without memory, for a plan."""
    check_model(model)
    check_unfolded(model)
    check_whole(model)
    item = remedy if isinstance(remedy, SpecItem) else parse_item(remedy)
    values = {**item.options, **(options or {})}
    listed = values.pop("blocks", None)
    blocks = listed if blocks is None else blocks
    item = SpecItem(item.name, values if blocks is None else {**values, "blocks": _block_option(blocks)})
    method, resolved = remedies.get(item.name), remedies.options_of(item)
    if method.once and blocks is not None:
        raise UnsmoothError(f"{method.key} is applied once per model and takes no blocks (got {blocks!r})")
    anatomy = anatomy_of(model, example) if anatomy is None else anatomy
    selected = method.blocks(anatomy, resolved) if method.once else select_blocks(blocks, len(anatomy.blocks))
    _check_conflicts(record_of(model), method, selected)
    plans: list[BlockPlan] = []
    placements: list[Placement] = []
    for index in selected:
        block = anatomy.blocks[index]
        with torch.device(device):
            placed, block_plan = _place(method, block, anatomy, resolved)
        placements += placed
        plans.append(block_plan)
    if placements:
        method.check(model, anatomy, example)
    placements = method.connect(placements, anatomy)
    _check_forward(model, placements)
    return Operation(Plan(item, tuple(plans), method.exact(resolved)), tuple(placements), anatomy)


def check_applicable(operation: Operation) -> None:
    """Raise `NotApplicable` if the remedy fits no block."""
    if not operation.placements:
        raise NotApplicable(f"{operation.remedy.name} does not fit this model: {_reasons(operation.plan)}")


def anatomy_of(model: nn.Module, example: Example | None = None) -> Anatomy:
    """The anatomy of a model: as recorded before its first remedy, or from one forward pass now."""
    check_model(model)
    recorded = record_of(model).anatomy
    if recorded is not None:
        names = {name for name, _ in model.named_modules()}
        if not all(block.name in names for block in recorded.blocks):
            raise UnsmoothError(
                "blocks were removed from this model after it was treated. Call remove(model), then apply again."
            )
        return recorded
    if isinstance(example, Mapping) and any(isinstance(x, Tensor) and x.shape[:1] != (1,) for x in example.values()):
        raise UnsmoothError("the example is a batch. Pass one image: example={'image': images[:1]}.")
    try:
        return examine(model, example)
    except UnsmoothError:
        raise
    except Exception as error:  # a host may fail in any way on an input that it was not made for
        reason, hidden = first_line(error), way_out(model)
        advice = f"If that is the cause, {hidden}. Or pass" if hidden else "Pass"
        raise UnsmoothError(
            f"could not run {type(model).__name__} on one example image ({reason}). {advice} one that it accepts: "
            "example={'image': torch.randn(1, 3, 224, 224)}."
        ) from error


def select_blocks(blocks: str | int | None, count: int) -> list[int]:
    """The indices that "6:", "0,3,5", ":-2" or "-1" select in a model of `count` blocks; None selects all."""
    if blocks is None:
        return list(range(count))
    selected: list[int] = []
    for item in str(blocks).split(","):
        match = re.fullmatch(r"\s*(-?\d+)?\s*(?:(:)\s*(-?\d+)?)?\s*", item)
        if not match or not (match[1] or match[2]):
            raise UnsmoothError(f"cannot read blocks={blocks!r}. Write '6:', ':-2', '0,3,5' or '4'.")
        if match[2]:
            span = range(count)[slice(*(int(bound) if bound else None for bound in (match[1], match[3])))]
            selected += [index for index in span if index not in selected]
            continue
        index = int(match[1])
        if not -count <= index < count:
            raise UnsmoothError(
                f"blocks={blocks!r}: there is no block {index}. This model has {count} blocks, 0 to {count - 1}."
            )
        selected += [i for i in [index % count] if i not in selected]
    if not selected:
        raise UnsmoothError(f"blocks={blocks!r} selects none of the {count} blocks (0 to {count - 1})")
    return sorted(selected)


def _block_option(blocks: Any) -> Any:
    return blocks if isinstance(blocks, int) else str(blocks)


def _place(method: Remedy[Any], block: Block, anatomy: Anatomy, options: Any) -> tuple[list[Placement], BlockPlan]:
    """The patches of one block, attention by attention if it has several, and its plan."""
    placed: list[Placement] = []
    flops, refusals = 0, []

    def place(view: Block) -> list[Placement]:
        return [_in_holder(placement, view, anatomy) for placement in method.place(view, anatomy, options)]

    try:
        views: tuple[Block, ...] = (block,)
        placed = place(block)
        flops = method.flops(block, anatomy, options)
    except NotApplicable as refusal:
        if not block.parts:
            return [], BlockPlan(block.index, block.name, refusal=str(refusal))
        views = block.parts
    for view in views if not placed else ():
        try:
            new = place(view)
            flops += method.flops(view, anatomy, options)
        except NotApplicable as refusal:
            refusals.append(str(refusal))
            continue
        for placement in new:
            if isinstance(placement.patch, AttentionPatch):
                placement.patch.attention_order = view.attention().order
        shared = {_site(placement) for placement in placed}  # a branch that runs several attentions is treated once
        placed += [p for p in new if isinstance(p.patch, AttentionPatch) or _site(p) not in shared]
    reason = "; ".join(dict.fromkeys(refusals))
    if not placed:
        return [], BlockPlan(block.index, block.name, refusal=reason)
    sites = tuple(map(_site, placed))
    modules = [p.patch for p in placed if isinstance(p.patch, nn.Module)]
    count = sum(parameter.numel() for module in modules for parameter in module.parameters())
    return placed, BlockPlan(block.index, block.name, sites, count, flops, partly=reason)


def _in_holder(placement: Placement, block: Block, anatomy: Anatomy) -> Placement:
    """A placement on a list block goes to the module that runs its members, under the number of the block."""
    if not block.holder or placement.target != block.name:
        return placement
    patch = placement.patch
    if not isinstance(patch, ResidualScale | ResidualPatch):
        return replace(placement, target=block.holder)
    if block.holder not in anatomy.sums:
        raise NotApplicable(f"its residual sums cannot be distinguished from other sums in {block.holder}")
    branch = f"{block.index}.{placement.branch}"
    if isinstance(patch, ResidualScale):
        patch = replace(patch, branch=branch)
    return replace(placement, target=block.holder, patch=patch, branch=branch)


def _site(placement: Placement) -> str:
    target = placement.target
    return placement.weight or (target.module if isinstance(target, HookPoint) else target)


def _check_conflicts(record: Record, remedy: Remedy[Any], selected: list[int]) -> None:
    for entry in record.applied:
        shared = sorted(set(entry.blocks) & set(selected))
        if not shared:
            continue
        where = "" if remedy.once else f" on block{'s' if len(shared) > 1 else ''} {', '.join(map(str, shared))}"
        if entry.remedy.name == remedy.key:
            raise UnsmoothError(f"{remedy.key} is already applied{where}. Call remove(model, {remedy.key!r}) first.")
        other = remedies.get(entry.remedy.name)
        if other.key in remedy.conflicts or remedy.key in other.conflicts:
            both = {remedy.key, other.key} <= set(REPLACE_SCORES)
            what = "scores" if both else "linear layers"
            raise UnsmoothError(
                f"{remedy.key} and {other.key} both replace the {what}{where}. Call remove(model, {other.key!r}) first."
            )


def _check_forward(model: nn.Module, placements: list[Placement]) -> None:
    """Raise if a target has a forward set on the instance, which hides the forward of the patched class."""
    for placement in placements:
        target = placement.target
        if isinstance(target, str) and "forward" in model.get_submodule(target).__dict__:
            raise UnsmoothError(
                f"{target} has its own forward set on the instance, as offloading libraries do, so a remedy would not "
                "run. Treat the model before."
            )

"""What a remedy would do to a model, worked out in full before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth import remedies
from unsmooth.errors import NotApplicable, UnsmoothError
from unsmooth.hosts.anatomy import Anatomy, Block, examine
from unsmooth.hosts.inputs import Example
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.remedies.base import Placement, Remedy
from unsmooth.spec import SpecItem, parse_item
from unsmooth.surgery.record import Record, check_model, check_unfolded, check_whole, record_of


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

    remedy: SpecItem
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
    return prepare(model, remedy, blocks, example, options, dry=True)[0]


def prepare(model: nn.Module, text: str, blocks: str | None, example: Example | None, options: dict[str, Any],
             dry: bool) -> tuple[Plan, SpecItem, list[int], list[Placement], Anatomy]:  # fmt: skip
    check_model(model)
    check_unfolded(model)
    check_whole(model)
    part = parse_item(text)
    remedy = remedies.get(part.name)
    given = {**part.options, **options}
    blocks = given.pop("blocks", None) if blocks is None else blocks
    given.pop("blocks", None)
    resolved = remedy.read(given)
    if remedy.once and blocks is not None:
        raise UnsmoothError(f"{remedy.key} acts once, on the patch tokens; it takes no blocks, so leave them out")
    anatomy = anatomy_of(model, example)
    chosen = remedy.blocks(anatomy, resolved) if remedy.once else select_blocks(blocks, len(anatomy.blocks))
    _check_neighbours(record_of(model), remedy, chosen)
    device = torch.device("meta") if dry else torch.device("cpu")
    plans: list[BlockPlan] = []
    placements: list[Placement] = []
    for index in chosen:
        block = anatomy.blocks[index]
        try:
            with device:
                placed = remedy.place(block, anatomy, resolved)
        except NotApplicable as refusal:
            plans.append(BlockPlan(index, block.name, refusal=str(refusal)))
            continue
        placements += placed
        plans.append(_block_plan(index, block, anatomy, remedy, resolved, placed))
    _check_forward(model, placements)
    if not placements and not dry:
        reasons = "; ".join(dict.fromkeys(plan.refusal for plan in plans))
        raise NotApplicable(f"{remedy.key} makes no sense on this model: {reasons}")
    kept = dict(given) if blocks is None or remedy.once else {**given, "blocks": _as_text(blocks)}
    part = SpecItem(part.name, kept)
    return Plan(part, tuple(plans), remedy.exact(resolved)), part, chosen, placements, anatomy


def anatomy_of(model: nn.Module, example: Example | None = None) -> Anatomy:
    """A model's anatomy: as recorded before its first remedy, or read off a forward pass now."""
    check_model(model)
    recorded = record_of(model).anatomy
    if recorded is not None:
        names = {name for name, _ in model.named_modules()}
        if not all(block.name in names for block in recorded.blocks):
            raise UnsmoothError(
                "blocks were taken out of this model since it was treated; remove(model), then apply again"
            )
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


def _as_text(blocks: Any) -> Any:
    return blocks if isinstance(blocks, int) else str(blocks)


def _block_plan(index: int, block: Block, anatomy: Anatomy, remedy: Remedy, options: dict[str, Any],
                placed: list[Placement]) -> BlockPlan:  # fmt: skip
    sites = tuple(p.weight or (p.at.module if isinstance(p.at, HookPoint) else p.at) for p in placed)
    count = sum(q.numel() for p in placed if isinstance(p.part, nn.Module) for q in p.part.parameters())
    return BlockPlan(index, block.name, sites, count, remedy.flops(block, anatomy, options))


def _check_neighbours(record: Record, remedy: Remedy, chosen: list[int]) -> None:
    for entry in record.entries:
        shared = sorted(set(entry.blocks) & set(chosen))
        if not shared:
            continue
        where = "" if remedy.once else f" on block{'s' if len(shared) > 1 else ''} {', '.join(map(str, shared))}"
        if entry.part.name == remedy.key:
            raise UnsmoothError(f"{remedy.key} is already applied{where}; remove(model, {remedy.key!r}) first")
        other = remedies.get(entry.part.name)
        if other.key in remedy.conflicts or remedy.key in other.conflicts:
            raise UnsmoothError(
                f"{remedy.key} and {other.key} both replace the scores{where}; remove(model, {other.key!r}) first"
            )


def _check_forward(model: nn.Module, placements: list[Placement]) -> None:
    """Refuse a module whose instance carries a forward of its own, which the class would never see."""
    for placement in placements:
        at = placement.at
        if isinstance(at, str) and "forward" in model.get_submodule(at).__dict__:
            raise UnsmoothError(
                f"{at} has a forward of its own, set on the instance (offloading and patches do so), which a remedy "
                "would not reach; treat the model before that"
            )

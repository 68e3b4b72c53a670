"""The anatomy of a model and a dry run of every remedy on it."""

from __future__ import annotations

from dataclasses import dataclass

from unsmooth import remedies
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.spec import ModelSpec, SpecItem, parse
from unsmooth.surgery.create import create_model
from unsmooth.surgery.plan import Fit, anatomy_of, fit
from unsmooth.utils.devices import choose_device
from unsmooth.utils.text import blocks_text, spans


@dataclass(frozen=True)
class Checkup:
    """The anatomy of a model and how each remedy fits it."""

    spec: str
    parameters: int
    anatomy: Anatomy
    fits: dict[str, Fit]

    @property
    def summary(self) -> str:
        embed = self.anatomy.patch_embed
        tokens = f", {embed.tokens} patch tokens" if embed else ""
        return f"{len(self.anatomy.blocks)} blocks{tokens}, {self.parameters / 1e6:.2f} M parameters"

    @property
    def skipped(self) -> tuple[str, ...]:
        return self.anatomy.skipped

    def anatomy_rows(self) -> list[tuple[str, ...]]:
        """One row per group of equal blocks."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for block in self.anatomy.blocks:
            groups.setdefault(_describe(block), []).append(block.index)
        return [(spans(indices), *row) for row, indices in groups.items()]

    def remedy_rows(self) -> list[tuple[str, ...]]:
        """One row per remedy: its blocks, new parameters, operations, and whether it changes the outputs."""
        return [_remedy_row(fitted, len(self.anatomy.blocks)) for fitted in self.fits.values()]

    def reasons(self) -> list[str]:
        """Why remedies do not fit, one line per reason: `adder, adder_attention, blocks 0–5: …`."""
        lines: dict[tuple[str, str], list[str]] = {}
        for key, fitted in self.fits.items():
            for where, reason in _reasons(fitted):
                lines.setdefault((where, reason), []).append(key)
        return [f"{', '.join(keys)}{where}: {reason}" for (where, reason), keys in lines.items()]


def checkup(spec: str | ModelSpec, device: str | None = None) -> Checkup:
    """Build a model and plan every remedy on it, without applying any."""
    spec, chosen = parse(spec), choose_device(device)
    model = create_model(spec).to(chosen)
    # The remedies of the spec are planned with their options, the others with their defaults.
    items = {key: SpecItem(key) for key in remedies.list_remedies()} | {item.name: item for item in spec.remedies}
    host = create_model(ModelSpec(spec.host)).to(chosen) if spec.remedies else model
    anatomy = anatomy_of(host)
    fits = {key: fit(host, item, anatomy) for key, item in items.items()}
    return Checkup(str(spec), sum(p.numel() for p in model.parameters()), anatomy, fits)


def _describe(block: Block) -> tuple[str, ...]:
    kinds = ", ".join(dict.fromkeys(f"{a.kind} ({a.via})" for a in block.attentions)) or "none"
    maps = ", ".join(dict.fromkeys(f"{a.queries}×{a.keys}" for a in block.attentions)) or "–"
    heads = ", ".join(dict.fromkeys(str(a.heads) for a in block.attentions)) or "–"
    return kinds, maps, heads, str(block.tokens), str(block.channels), "yes" if block.class_token else "no"


def _remedy_row(fitted: Fit, blocks: int) -> tuple[str, ...]:
    planned = fitted.plan
    if planned is None or not fitted:
        return str(fitted.remedy), "none", "", "", ""
    treated = [block.block for block in planned.blocks if not block.refusal]
    once = remedies.get(fitted.remedy.name).once
    where = "once" if once else "all" if len(treated) == blocks else spans(treated)
    start = "unchanged" if planned.exact else "changed"
    return str(planned.remedy), where, f"{planned.parameters:,}", f"{planned.flops / 1e6:,.2f}", start


def _reasons(fitted: Fit) -> list[tuple[str, str]]:
    """The blocks that a remedy does not fit, as text, and why; "" for all blocks."""
    if fitted.plan is None:
        return [("", fitted.reason)]
    groups: dict[str, list[int]] = {}
    for block, reason in fitted.plan.refused.items():
        groups.setdefault(reason, []).append(block)
    if len(groups) == 1 and not fitted:
        return [("", next(iter(groups)))]
    return [(f", {blocks_text(blocks)}", reason) for reason, blocks in groups.items()]

"""What works on a model: its anatomy, and a dry run of every remedy."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.spec import ModelSpec, parse
from unsmooth.surgery.create import create_model
from unsmooth.surgery.plan import Plan, anatomy_of, plan
from unsmooth.surgery.record import record_of
from unsmooth.utils.text import blocks_text, spans


@dataclass(frozen=True)
class Checkup:
    """A model's anatomy with the plan of every remedy, or the reason why there is none."""

    spec: str
    parameters: int
    anatomy: Anatomy
    plans: dict[str, Plan | str]

    @property
    def summary(self) -> str:
        patches = self.anatomy.patches
        tokens = f", {patches.tokens} patch tokens" if patches else ""
        return f"{len(self.anatomy.blocks)} blocks{tokens}, {self.parameters / 1e6:.2f} M parameters"

    @property
    def skipped(self) -> tuple[str, ...]:
        return self.anatomy.skipped

    def anatomy_rows(self) -> list[tuple[str, ...]]:
        """One row for each run of blocks that are alike."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for block in self.anatomy.blocks:
            groups.setdefault(_describe(block), []).append(block.index)
        return [(spans(indices), *row) for row, indices in groups.items()]

    def remedy_rows(self) -> list[tuple[str, ...]]:
        """One row for each remedy: on which blocks, what it adds, what it changes."""
        return [_remedy_row(key, result, len(self.anatomy.blocks)) for key, result in self.plans.items()]

    def reasons(self) -> list[str]:
        """Why remedies do not work, one line for each reason: `adder, adder_attention, blocks 0–5: …`."""
        lines: dict[tuple[str, str], list[str]] = {}
        for key, result in self.plans.items():
            for where, reason in _reasons(result):
                lines.setdefault((where, reason), []).append(key)
        return [f"{', '.join(keys)}{where}: {reason}" for (where, reason), keys in lines.items()]


def checkup(spec: str | ModelSpec) -> Checkup:
    """Build a model and try every remedy on it without applying any."""
    spec = parse(spec) if isinstance(spec, str) else spec
    model = create_model(spec)
    # The remedies of a spec are put to the test with their own options, the others with their defaults.
    asked = {part.name: str(part) for part in spec.remedies}
    host = create_model(ModelSpec(spec.host)) if asked else model
    anatomy = anatomy_of(host)
    record_of(host).anatomy = anatomy  # read once, not for every remedy
    results = {key: _try(host, asked.get(key, key)) for key in remedies.list_remedies()}
    return Checkup(str(spec), sum(p.numel() for p in model.parameters()), anatomy, results)


def _try(model: nn.Module, remedy: str) -> Plan | str:
    try:
        return plan(model, remedy)
    except UnsmoothError as error:
        return str(error)


def _describe(block: Block) -> tuple[str, ...]:
    kinds = ", ".join(dict.fromkeys(f"{a.kind} ({a.via})" for a in block.attentions)) or "none"
    maps = ", ".join(dict.fromkeys(f"{a.queries}×{a.keys}" for a in block.attentions)) or "–"
    heads = ", ".join(dict.fromkeys(str(a.heads) for a in block.attentions)) or "–"
    return kinds, maps, heads, str(block.tokens), str(block.channels), "yes" if block.class_token else "no"


def _remedy_row(key: str, result: Plan | str, blocks: int) -> tuple[str, ...]:
    if isinstance(result, str):
        return key, "none", "", "", ""
    works = [b.block for b in result.blocks if not b.refusal]
    if not works:
        return str(result.remedy), "none", "", "", ""
    where = "once" if remedies.get(key).once else "all" if len(works) == blocks else spans(works)
    start = "unchanged" if result.exact else "changed"
    return str(result.remedy), where, f"{result.parameters:,}", f"{result.flops / 1e6:,.2f}", start


def _reasons(result: Plan | str) -> list[tuple[str, str]]:
    """Where a remedy does not work and why; "" where that is everywhere."""
    if isinstance(result, str):
        return [("", result)]
    groups: dict[str, list[int]] = {}
    for block, reason in result.refused.items():
        groups.setdefault(reason, []).append(block)
    if len(groups) == 1 and len(result.refused) == len(result.blocks):
        return [("", next(iter(groups)))]
    return [(f", {blocks_text(at)}", reason) for reason, at in groups.items()]

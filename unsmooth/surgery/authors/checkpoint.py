"""Turns a checkpoint of a remedy's authors into a treated model."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from unsmooth import remedies
from unsmooth.errors import UnsmoothError, unknown
from unsmooth.spec import ModelSpec, SpecItem, parse
from unsmooth.surgery.authors.host_names import family_of, host_of
from unsmooth.surgery.authors.reading import weights_of
from unsmooth.surgery.authors.sources import SOURCES, Found, Source, some
from unsmooth.surgery.create import create_model
from unsmooth.surgery.record import parts
from unsmooth.surgery.storage import fill

BLOCK = re.compile(r"((?:layers\.\d+\.)?blocks\.\d+)\.(.+)")  # of DeiT, CaiT and Swin alike; not class attention
DOUBLED = (
    "FeatScale of the authors' DeiT file applies 1+2s and 1+2t since a commit of 2022, and 1+s, 1+t before; weights do "
    "not tell which. They are read as the paper prints it. If the accuracy is not the published one, import them with "
    "doubled=True (--doubled)"
)


def import_checkpoint(
    checkpoint: Mapping[str, Any] | str | Path,
    spec: str | None = None,
    *,
    source: str | None = None,
    doubled: bool | None = None,
    entry: str | None = None,
) -> nn.Module:
    """A model with AttnScale, FeatScale or augmented shortcuts, from a checkpoint of its authors' code.

    `checkpoint`: a .pth or .safetensors file, or its content. `spec`: the host, with or without its remedy; without,
    both are found by names and shapes. `source`: the remedy that it must hold. `doubled`: whether FeatScale on DeiT
    was trained as 1+2s, 1+2t; s and t are then doubled, so that outputs are the authors'. `entry`: which weights to
    take from a file that holds several (model, model_ema, state_dict, state_dict_ema); without, those that its
    authors evaluate. Weights of the host go through timm's own filter.
    """
    given = None if spec is None else parse(spec)
    weights, where = weights_of(checkpoint, entry)
    found, blocks, host = _split(weights, where, source)
    found.check(blocks, where)
    _check_doubled(doubled, found, family_of(weights, found.remedy))
    treated = ModelSpec(
        host_of(weights, found.remedy) if given is None else given.host, (_remedy(found, blocks, given, where),)
    )
    options, factor = treated.remedies[0].options, 2.0 if doubled else 1.0
    values = {block: found.values(has, options, factor) for block, has in blocks.items()}
    model = create_model(treated)
    return fill(model, {**host, **_placed(model, found, values, where)}, Path(where))


def _split(
    weights: Mapping[str, Tensor], where: str, wanted: str | None
) -> tuple[Source, dict[str, Found], dict[str, Tensor]]:
    """Which remedy the weights hold, its tensors by block, and the host's."""
    if wanted is not None and wanted not in SOURCES:
        raise unknown("source", wanted, SOURCES)
    blocks: dict[str, dict[str, dict[str, Tensor]]] = {}
    host: dict[str, Tensor] = {}
    for name, value in weights.items():
        match = BLOCK.fullmatch(name)
        remedy = next((key for key, s in SOURCES.items() if match and s.names.fullmatch(match[2])), None)
        if match and remedy:
            blocks.setdefault(remedy, {}).setdefault(match[1], {})[match[2]] = value
        else:
            host[name] = value
    held = ", ".join(blocks) or "none"
    if wanted is not None and list(blocks) != [wanted]:
        raise UnsmoothError(f"{where} does not hold {wanted} alone; it holds parameters of: {held}")
    if len(blocks) != 1:
        hint = (
            "a checkpoint of a plain host is read by unsmooth.load" if not blocks else "its authors use one at a time"
        )
        raise UnsmoothError(f"{where} must hold the parameters of one of {', '.join(SOURCES)}, not: {held}; {hint}")
    (remedy, of_blocks), *_ = blocks.items()
    return SOURCES[remedy], dict(of_blocks), host


def _check_doubled(doubled: bool | None, source: Source, family: str) -> None:
    concerned = source.remedy == "feat_scale" and family == "deit"
    if doubled and not concerned:
        raise UnsmoothError(
            f"doubled is for FeatScale on DeiT; this is {source.remedy} on {family}, which its authors never doubled"
        )
    if doubled is None and concerned:
        warnings.warn(DOUBLED, stacklevel=3)


def _remedy(source: Source, blocks: Mapping[str, Found], given: ModelSpec | None, where: str) -> SpecItem:
    """The remedy with the options that the weights need, checked against what was asked for."""
    needed = source.options(blocks)
    asked = () if given is None else given.remedies
    if not asked:
        return SpecItem(source.remedy, needed)
    if [part.name for part in asked] != [source.remedy]:
        raise UnsmoothError(f"{where} holds {source.remedy}, not {'+'.join(map(str, asked))}; give the host alone")
    chosen = remedies.get(source.remedy)
    other = {name: value for name, value in asked[0].options.items() if name != "blocks"}
    if "blocks" in asked[0].options or chosen.read({**needed, **other}) != chosen.read(needed):
        raise UnsmoothError(f"{where} holds {SpecItem(source.remedy, needed)}, not {asked[0]}; give the host alone")
    return SpecItem(source.remedy, needed)


def _placed(
    model: nn.Module, source: Source, values: Mapping[str, list[dict[str, Tensor]]], where: str
) -> dict[str, Tensor]:
    """The remedy's parameters under the names that they have in the model."""
    placed: dict[str, Tensor] = {}
    homes: dict[str, list[str]] = {}
    for name, _ in parts(model, source.remedy):
        match = BLOCK.match(name)
        homes.setdefault(match[1] if match else name, []).append(name)
    for what, names in (
        ("has no parameters of {} for", [block for block in homes if block not in values]),
        ("has parameters of {} for more blocks than the host has:", [block for block in values if block not in homes]),
    ):
        if names:
            raise UnsmoothError(f"{where} {what.format(source.remedy)} {some(names)}; name the right host in the spec")
    for block, of_parts in values.items():
        for home, parameters in zip(homes[block], of_parts, strict=True):
            placed |= {f"{home}.{name}": value for name, value in parameters.items()}
    return placed

"""Reads a checkpoint of a remedy's authors and turns it into a treated model. Nothing in the file is executed."""

from __future__ import annotations

import argparse
import re
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth import remedies
from unsmooth.errors import UnsmoothError, unknown
from unsmooth.spec import ModelSpec, SpecItem, parse
from unsmooth.surgery.authors.formats import FORMATS, BlockTensors, CheckpointFormat, some
from unsmooth.surgery.authors.host_names import family_of, host_of
from unsmooth.surgery.create import create_model
from unsmooth.surgery.record import parts
from unsmooth.surgery.storage import WRAPPED, fill, read_weights

BLOCK = re.compile(r"((?:layers\.\d+\.)?blocks\.\d+)\.(.+)")  # in DeiT, CaiT and Swin; not class attention
# The entries that hold weights, preferred ones first: DeiT's script stores an average too and evaluates the model;
# timm's stores and evaluates the average.
ENTRIES = ("model", "state_dict_ema", "model_ema", "state_dict")
# Settings that the scripts store with the weights: a plain object, and in Swin's script a dict of a library that need
# not be installed. Both are ignored.
IGNORED_TYPES: list[Any] = [argparse.Namespace, (OrderedDict, "yacs.config.CfgNode")]
DOUBLED = (
    "The authors' DeiT code for FeatScale applies 1+2s and 1+2t since a commit of 2022, and 1+s and 1+t before. The "
    "weights do not show which; they are read as 1+s and 1+t, as in the paper. If the accuracy is not the published "
    "one, import them with doubled=True (--doubled)."
)


def import_checkpoint(
    checkpoint: Mapping[str, Any] | str | Path,
    spec: str | None = None,
    *,
    source: str | None = None,
    doubled: bool | None = None,
    entry: str | None = None,
) -> nn.Module:
    """Build a model with AttnScale, FeatScale or augmented shortcuts from a checkpoint of the authors' code.

    The weights of the host pass through timm's checkpoint filter.

    Args:
        checkpoint: A .pth or .safetensors file, or its content.
        spec: The host, with or without its remedy. Default: both are recognised by names and shapes.
        source: The remedy that the checkpoint must hold. Default: any of the three.
        doubled: Whether FeatScale on DeiT was trained with 1+2s and 1+2t; s and t are then doubled, so that the
            outputs are those of the authors' model.
        entry: The entry of the file that holds the weights: `model`, `model_ema`, `state_dict` or `state_dict_ema`.
            Default: the one that the authors evaluate.

    Returns:
        The treated model with the weights of the checkpoint.

    Raises:
        UnsmoothError: The file cannot be read, does not hold one of the three remedies, or does not fit the host.

    Example:
        >>> import torch, unsmooth
        >>> host = "deit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)"
        >>> theirs = dict(unsmooth.create_model(host).state_dict())
        >>> theirs |= {f"blocks.{block}.attn.lamb": torch.zeros(3) for block in range(2)}
        >>> model = unsmooth.import_checkpoint(theirs, host)
        >>> str(unsmooth.applied(model))
        'deit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+attn_scale'
    """
    requested = None if spec is None else parse(spec)
    content = _read(checkpoint, entry)
    tensors = _split(content, source)
    form = tensors.form
    form.check(tensors.blocks, content.where)
    _check_doubled(doubled, form, family_of(content.weights, form.remedy))
    host = host_of(content.weights, form.remedy) if requested is None else requested.host
    remedy = _remedy(form, tensors.blocks, requested, content.where)
    factor = 2.0 if doubled else 1.0
    values = {block: form.values(held, remedy.options, factor) for block, held in tensors.blocks.items()}
    model = create_model(ModelSpec(host, (remedy,)))
    weights = {**tensors.host, **_named_as_in(model, form, values, content.where)}
    return fill(model, weights, Path(content.where))


@dataclass(frozen=True)
class _Content:
    """The tensors of a checkpoint by name, without the prefixes of wrappers, and what to call it in errors."""

    weights: dict[str, Tensor]
    where: str


@dataclass(frozen=True)
class _Tensors:
    """The tensors of a checkpoint: those of its remedy by block, and those of its host."""

    form: CheckpointFormat
    blocks: dict[str, BlockTensors]
    host: dict[str, Tensor]


def _read(checkpoint: Mapping[str, Any] | str | Path, entry: str | None) -> _Content:
    if isinstance(checkpoint, Mapping):
        content, where = checkpoint, "this state dict"
    else:
        content, where = _read_file(Path(checkpoint)), str(checkpoint)
    entries = [name for name in ENTRIES if isinstance(content.get(name), Mapping)]
    if entry is not None and entry not in entries:
        raise unknown("entry", entry, entries, owner=where)
    if entries:
        content = content[entry or entries[0]]
    weights = {WRAPPED.sub("", str(name)): value for name, value in content.items() if isinstance(value, Tensor)}
    if not weights:
        raise UnsmoothError(
            f"{where} holds no weights. Expected tensors by name, or a dict with one of {', '.join(ENTRIES)}."
        )
    return _Content(weights, where)


def _read_file(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise UnsmoothError(f"{path} does not exist or is not a file. Pass a .pth or .safetensors file.")
    if path.suffix == ".safetensors":
        return read_weights(path)
    try:
        with torch.serialization.safe_globals(IGNORED_TYPES):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises errors of many types for a broken or foreign file
        unsafe = _unsafe_types(path)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if unsafe:
            reason = f"it holds a {unsafe[0]}, which could run code. Save only its weights and import those."
        raise UnsmoothError(f"cannot read weights from {path}: {reason}") from error
    if not isinstance(content, Mapping):
        raise UnsmoothError(f"{path} holds a {type(content).__name__}, not weights by name")
    return content


def _unsafe_types(path: Path) -> list[str]:
    """The types in a file that PyTorch does not load with `weights_only`."""
    try:
        with torch.serialization.safe_globals(IGNORED_TYPES):
            return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # not a file of torch.save
        return []


def _split(content: _Content, source: str | None) -> _Tensors:
    if source is not None and source not in FORMATS:
        raise unknown("source", source, FORMATS)
    blocks: dict[str, dict[str, dict[str, Tensor]]] = {}
    host: dict[str, Tensor] = {}
    for name, value in content.weights.items():
        match = BLOCK.fullmatch(name)
        remedy = next((key for key, form in FORMATS.items() if match and form.names.fullmatch(match[2])), None)
        if match and remedy:
            blocks.setdefault(remedy, {}).setdefault(match[1], {})[match[2]] = value
        else:
            host[name] = value
    names = ", ".join(blocks) or "none"
    if source is not None and list(blocks) != [source]:
        raise UnsmoothError(f"{content.where} must hold {source} only; it holds parameters of: {names}")
    if len(blocks) != 1:
        hint = (
            "Load a checkpoint of a plain host with unsmooth.load." if not blocks else "The authors use one at a time."
        )
        raise UnsmoothError(
            f"{content.where} must hold the parameters of one of {', '.join(FORMATS)}, not: {names}. {hint}"
        )
    (remedy, remedy_blocks), *_ = blocks.items()
    return _Tensors(FORMATS[remedy], dict(remedy_blocks), host)


def _check_doubled(doubled: bool | None, form: CheckpointFormat, family: str) -> None:
    ambiguous = form.remedy == "feat_scale" and family == "deit"
    if doubled and not ambiguous:
        raise UnsmoothError(
            f"doubled is for FeatScale on DeiT. This is {form.remedy} on {family}, which was never doubled."
        )
    if doubled is None and ambiguous:
        warnings.warn(DOUBLED, stacklevel=3)


def _remedy(
    form: CheckpointFormat, blocks: Mapping[str, BlockTensors], requested: ModelSpec | None, where: str
) -> SpecItem:
    """The remedy with the options that the weights need. Raises if the spec asks for something else."""
    item = SpecItem(form.remedy, form.options(blocks))
    listed = () if requested is None else requested.remedies
    if not listed:
        return item
    if [other.name for other in listed] != [form.remedy]:
        raise UnsmoothError(f"{where} holds {form.remedy}, not {'+'.join(map(str, listed))}. Pass the host only.")
    merged = SpecItem(form.remedy, {**item.options, **listed[0].options})
    if "blocks" in listed[0].options or remedies.options_of(merged) != remedies.options_of(item):
        raise UnsmoothError(f"{where} holds {item}, not {listed[0]}. Pass the host only.")
    return item


def _named_as_in(
    model: nn.Module, form: CheckpointFormat, values: Mapping[str, list[dict[str, Tensor]]], where: str
) -> dict[str, Tensor]:
    """The parameters of the remedy by the names that they have in the model."""
    patches: dict[str, list[str]] = {}
    for name, _ in parts(model, form.remedy):
        match = BLOCK.match(name)
        patches.setdefault(match[1] if match else name, []).append(name)
    for problem, names in (
        ("has no parameters of {} for", [block for block in patches if block not in values]),
        ("has parameters of {} for more blocks than the host has:", [b for b in values if b not in patches]),
    ):
        if names:
            raise UnsmoothError(f"{where} {problem.format(form.remedy)} {some(names)}. Pass the matching host as spec.")
    return {
        f"{patch}.{name}": value
        for block, block_values in values.items()
        for patch, parameters in zip(patches[block], block_values, strict=True)
        for name, value in parameters.items()
    }

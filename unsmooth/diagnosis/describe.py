"""Descriptions that a diagnosis keeps: the model, the images, each vital, and the parameters of remedies."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from unsmooth.data.image_batches import ImageBatches
from unsmooth.diagnosis.measure import Measurements
from unsmooth.diagnosis.moments import finite_or_none
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.build import PRETRAINED
from unsmooth.hosts.token_layout import prefix_of
from unsmooth.results.measured import (
    AttentionInfo,
    BlockInfo,
    Broken,
    ImagesInfo,
    LearnedParameter,
    ModelInfo,
    Series,
    VitalResult,
    Weights,
    round_values,
)
from unsmooth.spec import ModelSpec
from unsmooth.surgery.record import applied, record_of
from unsmooth.surgery.storage import WEIGHTS, OpenedModel
from unsmooth.utils.precision import whole
from unsmooth.vitals.base import Vital

DIGEST = 12  # characters of a digest
LISTED_VALUES = 64  # longer parameters are summarised by as many quantiles


def describe_model(model: nn.Module, name: str, anatomy: Anatomy, weights: Weights | None = None) -> ModelInfo:
    return ModelInfo(
        name=name,
        class_name=type(model).__name__,
        remedies=[str(remedy) for remedy in applied(model).remedies],
        parameters=sum(p.numel() for p in model.parameters()),
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        blocks=[_describe_block(block, anatomy) for block in anatomy.blocks],
        skipped=list(anatomy.skipped),
        weights=weights,
    )


def describe_weights(
    given: nn.Module | str | Path | ModelSpec, opened: OpenedModel, checkpoint: Path | None, pretrained: bool
) -> Weights:
    """Where the weights of a model come from; `given` is what the caller passed."""
    model = opened.model
    if checkpoint is not None:
        file = checkpoint / WEIGHTS if checkpoint.is_dir() else checkpoint
        return Weights("file", str(checkpoint), sha256=_digest_of_file(file))
    if isinstance(given, nn.Module):
        return Weights("object", sha256=digest_of_tensors(model))
    if isinstance(given, str | Path) and Path(given).is_dir():
        return Weights("folder", str(given), sha256=_digest_of_file(Path(given) / WEIGHTS))
    host = None if opened.spec is None else opened.spec.host
    if pretrained or (host is not None and host.options.get(PRETRAINED)):
        name = "" if host is None else host.name
        return Weights("pretrained", name, _tag_of(model), digest_of_tensors(model))
    return Weights("none")


def _tag_of(model: nn.Module) -> str:
    """The architecture and tag of timm's pretrained weights, such as vit_tiny_patch16_224.augreg_in21k_ft_in1k."""
    config = getattr(model, "pretrained_cfg", None) or {}
    parts = [config.get("architecture"), config.get("tag")]
    return ".".join(str(part) for part in parts if part)


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST]


def digest_of_tensors(model: nn.Module) -> str:
    """The start of the SHA-256 of the names and the bytes of all weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(whole(value).detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:DIGEST]


def _describe_block(block: Block, anatomy: Anatomy) -> BlockInfo:
    attention = [AttentionInfo(a.kind, a.via, a.heads, a.queries, a.keys) for a in block.attentions]
    return BlockInfo(
        block.index, block.name, block.tokens, block.channels, prefix_of(block, anatomy), list(block.residuals),
        attention,
    )  # fmt: skip


def describe_images(source: ImageBatches, count: int, prefix: bool) -> ImagesInfo:
    return ImagesInfo(
        source=source.name, count=count, size=list(source.size), mean=list(source.mean), std=list(source.std),
        skipped=source.skipped, prefix_tokens=prefix,
    )  # fmt: skip


def describe_broken(measured: Measurements) -> Broken | None:
    return None if measured.broken is None else Broken(*measured.broken)


def describe_vitals(vitals: list[Vital], measured: Measurements) -> dict[str, VitalResult]:
    """Each vital with its values as they are saved."""
    series = rounded_series(measured)
    return {
        vital.key: VitalResult(
            vital.title, vital.formula, vital.reading, vital.help, vital.family, vital.main, vital.low, vital.high,
            measured.samples[vital.key], dict(vital.parts), series[vital.key],
            dict(sorted(measured.skipped[vital.key].items())),
        )
        for vital in vitals
    }  # fmt: skip


def rounded_series(measured: Measurements, curves: bool = True) -> dict[str, dict[str, Series]]:
    """Values by vital and part, rounded; without `curves`, only parts with one number per block."""
    return {
        key: {
            part: [None if spread is None else spread.rounded() for spread in series]
            for part, series in parts.items()
            if curves or not any(spread is not None and isinstance(spread.mean, list) for spread in series)
        }
        for key, parts in measured.values.items()
    }


def learned_parameters(model: nn.Module, anatomy: Anatomy) -> list[LearnedParameter]:
    """Every parameter of the applied remedies: its block, its values and their range."""
    rows = []
    for entry in record_of(model).applied:
        for attachment in entry.attachments:
            if not attachment.module:
                continue
            module = attachment.module
            block = next((b for b in anatomy.blocks if module.startswith(f"{b.name}.")), None)
            for name, parameter in model.get_submodule(module).named_parameters():
                rows.append(_describe_parameter(entry.remedy.name, f"{module}.{name}", name, block, whole(parameter)))
    return rows


def _describe_parameter(remedy: str, path: str, name: str, block: Block | None, parameter: Tensor) -> LearnedParameter:
    flat = parameter.detach().double().flatten().cpu()
    long = flat.numel() > LISTED_VALUES
    shown = flat.quantile(torch.linspace(0, 1, LISTED_VALUES, dtype=flat.dtype)) if long else flat
    mean, low, high, values = (
        round_values(finite_or_none(v.tolist())) for v in (flat.mean(), flat.min(), flat.max(), shown)
    )  # fmt: skip
    index = None if block is None else block.index
    by_head = _by_head(parameter, block)
    return LearnedParameter(remedy, path, name, index, flat.numel(), mean, low, high, values, long, by_head)


def _by_head(parameter: Tensor, block: Block | None) -> list[float | None] | None:
    """The mean by head of a parameter with one value per head or per channel."""
    heads = block.attention().heads if block is not None and len(block.attentions) == 1 else 0
    if not heads or parameter.ndim != 1 or len(parameter) % heads:
        return None
    means = parameter.detach().double().unflatten(0, (heads, -1)).mean(dim=1).tolist()
    shown: list[float | None] = round_values(finite_or_none(means))
    return shown

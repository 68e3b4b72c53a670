"""Diagnose: is it collapsing, where, why, and what would help."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from unsmooth._version import __version__
from unsmooth.data.image_batches import LIMIT, ImageBatches, ImageInput, NamedImages, image_batches
from unsmooth.diagnosis import registry
from unsmooth.diagnosis.learned import learned
from unsmooth.diagnosis.measure import Measurements, measure, measure_model
from unsmooth.diagnosis.random_reference import random_reference
from unsmooth.diagnosis.samples import samples
from unsmooth.diagnosis.verdict import judge
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.hosts.inputs import Example
from unsmooth.hosts.token_layout import prefix_of
from unsmooth.results.base import FORMAT
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.surgery.plan import anatomy_of, fit, select_blocks
from unsmooth.surgery.record import applied
from unsmooth.surgery.storage import open_model
from unsmooth.vitals.base import Vital

MAP_BYTES = 2**26  # of one block's maps, before a batch is made smaller
BATCH = (4, 16)  # smallest and largest batch that is chosen; CKA needs four images
REFERENCE_IMAGES = 8
SAMPLES = 2

Progress = Callable[[int, int | None], None]  # images done, images in all if known


def diagnose(
    model: nn.Module | str | Path,
    images: ImageInput = None,
    vitals: str | Iterable[str] | None = None,
    blocks: str | None = None,
    *,
    checkpoint: str | Path | None = None,
    data_dir: str | Path | None = None,
    prefix: bool = True,
    batch_size: int | None = None,
    limit: int | None = LIMIT,
    reference: bool = True,
    example: Example | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> Diagnosis:
    """Measure a model on images and judge what was found. The model is not changed.

    `model`: a model, a spec, or a folder written by `save`. `images`: a folder, an .npz file, a data set of timm, a
    tensor (floats as the host takes them, or uint8), a loader, or None for photographs that come with scikit-learn.
    `data_dir` is where timm looks for the files of a data set.
    `vitals`: names, "default" or "all". `blocks`: "6:", "0,3" or "-1". `prefix=False` leaves class and register
    tokens out of token vitals. `limit`: how many images at most. `reference=False` saves the look at the same
    architecture at random start. `example` is one input for a host that an image of noise does not suit. `progress` is
    told images done and images in all; `command` goes into the report.
    """
    chosen = registry.select(vitals)
    model, name = open_model(model, checkpoint)
    if batch_size is not None and batch_size < 1:
        raise UnsmoothError(f"batch_size must be at least 1, not {batch_size}")
    if limit is not None and limit < 1:
        raise UnsmoothError(f"limit must be at least 1, not {limit}")
    anatomy = anatomy_of(model, example)
    at = None if blocks is None else select_blocks(blocks, len(anatomy.blocks))
    source = image_batches(model, images, batch_size or _batch_size(anatomy), limit, data_dir)
    begun = time.time()
    twin = random_reference(model) if reference else None
    count = _Count(source.count, twin is not None, progress)
    first, batches = _peek(source)
    asked = vitals.split(",") if isinstance(vitals, str) else vitals or ()
    found = measure(model, anatomy, batches, chosen, at, prefix, count.advance, asked)
    measure_model(model, anatomy, first.images, chosen, at, found)
    data = _describe(model, name, anatomy, source, found, chosen, prefix)
    data["reference"] = None
    if twin is not None:
        few = NamedImages(first.images[:REFERENCE_IMAGES], None, first.names)
        start = measure(twin[0], anatomy_of(twin[0]), [few], _streaming(chosen), at, prefix, count.advance)
        data["reference"] = {"how": twin[1], "images": start.images, "vitals": _values(start, curves=False)}
    data["samples"] = samples(model, anatomy, source, first, SAMPLES)
    data["learned"] = learned(model)
    data["made"] = {
        "unsmooth": __version__, "torch": torch.__version__, "timm": timm.__version__,
        "command": command, "seconds": round(time.time() - begun, 1),
    }  # fmt: skip
    data["findings"], data["verdict"] = judge(data)
    for candidate in (row for finding in data["findings"] for row in finding["remedies"] if row["spec"]):
        candidate["fits"] = bool(fit(model, candidate["spec"]))
    return Diagnosis(data)


class _Count:
    """Tells how many images are done, of the pass and of the reference together."""

    def __init__(self, images: int | None, reference: bool, progress: Progress | None) -> None:
        extra = min(REFERENCE_IMAGES, images) if reference and images is not None else 0
        self.total = None if images is None else images + extra
        self.done, self.progress = 0, progress

    def advance(self, images: int) -> None:
        self.done += images
        if self.progress is not None:
            self.progress(self.done, self.total)


def _batch_size(anatomy: Anatomy) -> int:
    """As many images as keep one block's maps small."""
    largest = max(
        (4 * a.windows * a.heads * a.queries * a.keys for block in anatomy.blocks for a in block.attentions), default=1
    )
    return max(BATCH[0], min(BATCH[1], MAP_BYTES // largest))


def _peek(source: ImageBatches) -> tuple[NamedImages, Iterator[NamedImages]]:
    batches = iter(source)
    first = next(batches)
    return first, itertools.chain([first], batches)


def _streaming(chosen: list[Vital]) -> list[Vital]:
    """What is measured of the reference: everything but the theory and what needs labels."""
    return [vital for vital in chosen if vital.family not in ("theory", "function")]


def _values(found: Measurements, curves: bool = True) -> dict[str, Any]:
    return {
        key: {
            part: [None if s is None else s.to_json() for s in series]
            for part, series in parts.items()
            if curves or not any(s is not None and isinstance(s.mean, list) for s in series)
        }
        for key, parts in found.values.items()
    }


def _describe(model: nn.Module, name: str, anatomy: Anatomy, source: ImageBatches, found: Measurements,
              chosen: list[Vital], prefix: bool) -> dict[str, Any]:  # fmt: skip
    values = _values(found)
    parameter = next(model.parameters())
    return {
        "format": FORMAT,
        "kind": "diagnosis",
        "model": {
            "name": name,
            "class": type(model).__name__,
            "remedies": [str(part) for part in applied(model).remedies],
            "parameters": sum(p.numel() for p in model.parameters()),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "blocks": [
                {
                    "index": block.index, "name": block.name, "tokens": block.tokens, "channels": block.channels,
                    "prefix": prefix_of(block, anatomy), "joins": list(block.residuals),
                    "attention": [
                        {"kind": a.kind, "via": a.via, "heads": a.heads, "queries": a.queries, "keys": a.keys}
                        for a in block.attentions
                    ],
                }
                for block in anatomy.blocks
            ],
            "skipped": list(anatomy.skipped),
        },
        "images": {
            "source": source.name, "count": found.images, "size": list(source.size), "mean": list(source.mean),
            "std": list(source.std), "skipped": source.skipped, "prefix_tokens": prefix,
        },
        "broken": None if found.broken is None else {"block": found.broken[0], "where": found.broken[1]},
        "vitals": {
            vital.key: {
                "title": vital.title, "formula": vital.formula, "reading": vital.reading, "help": vital.help,
                "family": vital.family, "main": vital.main, "low": vital.low, "high": vital.high,
                "sample": vital.sample, "meaning": dict(vital.parts), "parts": values[vital.key],
                "skipped": {str(block): reason for block, reason in sorted(found.skipped[vital.key].items())},
            }
            for vital in chosen
        },
    }  # fmt: skip

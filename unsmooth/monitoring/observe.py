"""One measurement during training: vitals by block on a few images, and where NaN or infinity appears first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unsmooth.data.image_batches import NamedImages
from unsmooth.diagnosis.measure import Measurements, measure
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.results.measured import Series, Values
from unsmooth.vitals.base import Vital

Curves = dict[str, list[Values]]  # by vital, or vital.part: one value per block, None where there is none


def scalars(curves: Curves) -> dict[str, float]:
    """The numbers of curves by name, such as `token_cosine/block 3`. Values by head are left out."""
    return {
        f"{name}/block {block}": value
        for name, values in curves.items()
        for block, value in enumerate(values)
        if isinstance(value, float)
    }


@dataclass(frozen=True)
class VitalsRecord:
    """One measurement during training.

    Attributes:
        step: Optimizer steps done before it.
        vitals: Values by block, by vital (its main part) or `vital.part`; None where a block has no value.
        seconds: Time that it took.
    """

    step: int
    vitals: Curves
    seconds: float

    def scalars(self) -> dict[str, float]:
        """The numbers by name, such as `token_cosine/block 3`. Values by head are left out."""
        return scalars(self.vitals)


class Breakage(NamedTuple):
    """Where NaN or infinity appears first. `block` is None outside the blocks."""

    block: int | None
    text: str


class Observation(NamedTuple):
    """Measured values, and the place of the first one that is not finite."""

    curves: Curves
    broken: Breakage | None


def observe(
    model: nn.Module,
    anatomy: Anatomy,
    images: Tensor,
    vitals: Sequence[Vital],
    parts: Iterable[tuple[str, str]] = (),
    requested: Iterable[str] = (),
) -> Observation:
    """Means of the main part of each vital, and of other `parts` of them, by block. The model is not changed."""
    measured = measure(model, anatomy, [NamedImages(images)], vitals, requested=requested)
    curves: Curves = {}
    for vital in vitals:
        if known := measured.values[vital.key]:
            curves[vital.key] = _means(known[vital.main if vital.main in known else next(iter(known))])
    for key, part in parts:
        if part in (known := measured.values.get(key, {})):
            curves[f"{key}.{part}"] = _means(known[part])
    return Observation(curves, _breakage(model, anatomy, images, measured))


def _means(series: Series) -> list[Values]:
    return [None if spread is None else spread.rounded().mean for spread in series]


def first_broken(model: nn.Module, anatomy: Anatomy, images: Tensor, chunks: int = 1) -> str:
    """A sentence that says where NaN or infinity first appears. The images are run in `chunks`."""
    measured = Measurements()
    if images.isfinite().all():
        measured = measure(model, anatomy, [NamedImages(chunk) for chunk in images.chunk(chunks)], [])
    broken = _breakage(model, anatomy, images, measured)
    if broken is None:
        return "every block is finite, so the head or the loss is not. Try a lower learning rate or amp=none"
    return broken.text


def _breakage(model: nn.Module, anatomy: Anatomy, images: Tensor, measured: Measurements) -> Breakage | None:
    if not images.isfinite().all():
        return Breakage(None, "the images contain NaN or infinity")
    broken_weight = next((name for name, w in model.state_dict().items() if not _finite(w)), None)
    if measured.broken is not None:
        block, branch = measured.broken
        text = f"block {block} broke first, in its {branch.removeprefix('a ')}"
        cause = f"; the weight {broken_weight} is not finite" if broken_weight else ""
        return Breakage(block, text + cause)
    if broken_weight is not None:
        return Breakage(_block_of(anatomy, broken_weight), f"every block is finite, but {broken_weight} is not")
    return None


def _finite(w: Tensor) -> bool:
    return not w.is_floating_point() or bool(torch.isfinite(w).all())


def _block_of(anatomy: Anatomy, name: str) -> int | None:
    """The block that a parameter belongs to."""
    return next((b.index for b in anatomy.blocks if name.startswith(f"{b.name}.")), None)


def broken_gradient(model: nn.Module, anatomy: Anatomy) -> Breakage:
    """The first broken gradient of the backward pass: the last one of the model."""
    names = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    if not names:
        return Breakage(None, "every gradient is finite, but their norm is not")
    block = _block_of(anatomy, names[-1])
    where = f"block {block}" if block is not None else "a module outside the blocks"
    return Breakage(block, f"{where} broke first, in the gradient of {names[-1]}")

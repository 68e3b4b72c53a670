"""What a vital is made of.

A vital is a pure function on tensors of a whole batch, registered with what it says about itself. Its file, its
function and its key have one name. What it is fed with (`of`) is one of:

    tokens        x (B, n, d)                      a block's output
    growth        x, first (B, n, d)               that, and the tokens in front of the first block
    change        before, after (B, n, d)          a block's input and output
    branches      x, f (B, n, d)                   the residual stream and what a branch adds to it, for each branch
    singular      σ (B, r), descending             singular values of the tokens at each of `sites`
    grid          x (B, h, w, d)                   patch tokens on their grid
    map           A (B, H, n, m)                   attention maps: of a treated model, the effective ones
    scores        P (B, H, n, m)                   what went into the softmax
    map_singular  σ (B, H, r), descending          singular values of the maps
    map_grid      A (B, H, p, p), distances (p, p) maps between patch tokens, and how many pixels lie between them

    model         model, anatomy, images, blocks   the model itself, for the bounds of theory: by part and block

It gives one number an image, (B,) or (B, H), or several under names. The pass (`unsmooth.diagnosis.measure`) averages over
images as they come, so nothing grows with their number.

A vital that must see more than one block at a time (`of="blocks"`) registers a `Collector` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError

FAMILIES = ("similarity", "rank", "attention", "signal", "function", "theory")
OVER_TOKENS = ("global", "windowed", "pooled-kv")
SQUARE = ("global", "windowed")
TOKEN_SAMPLE = 64  # images whose tokens are decomposed
SITE_SAMPLE = 8  # images whose tokens are decomposed inside a block too
MAP_SAMPLE = 8  # images whose maps are decomposed
MAP_SIDE = 256  # maps up to this size are decomposed for the whole sample, larger ones for fewer images
LARGEST_SIDE = 1024  # maps above this size are decomposed only for who asks by name
THEORY_SAMPLE = 2  # images that bounds are computed for

ROUNDING = 1e-5  # by so much a sum of softmax weights may differ from one

Values = Tensor | dict[str, Tensor]


@dataclass(frozen=True)
class Vital:
    """A measurement and what it says about itself. Lists, tables and the report are made of these."""

    key: str
    measure: Callable[..., Any]
    title: str
    formula: str
    reading: str
    family: str
    of: str
    accepts: tuple[str, ...] = ()  # kinds of attention, for vitals of maps
    sites: tuple[str, ...] = ("",)  # of tokens that are decomposed: the block's output, a branch, a branch's sum
    sample: int | None = None  # how many images it looks at; None: all
    cubic: bool = False  # its cost grows with the cube of the map's size: fewer images of larger maps, if any
    site_sample: int | None = None  # the same for sites other than the block's output
    main: str = ""  # the part that stands for it in a table
    parts: tuple[tuple[str, str], ...] = ()  # what further parts mean
    low: float | None = None  # range, where it has one
    high: float | None = None
    default: bool = True

    @property
    def help(self) -> str:
        """The docstring of its file: formula, range, reading."""
        import sys

        return (sys.modules[self.measure.__module__].__doc__ or "").strip()


REGISTRY: dict[str, Vital] = {}


def register(**facts: Any) -> Callable[[Any], Any]:
    """Register a function, or the class of a collector, as the vital of its file's name."""

    def decorate(measure: Any) -> Any:
        key = measure.__module__.rsplit(".", 1)[-1]
        assert facts["family"] in FAMILIES and key not in REGISTRY
        REGISTRY[key] = Vital(key, measure, **facts)
        return measure

    return decorate


class Undefined(UnsmoothError):
    """A vital has no value here, for a reason that is shown in its place."""


def full(x: Tensor) -> Tensor:
    """The same numbers in single precision, or in double where they came so."""
    return x if x.dtype == torch.float64 else x.float()


def distribution(a: Tensor) -> Tensor:
    """The rows of a map as distributions. Those of softmax are; an effective map may have entries below zero."""
    a = full(a)
    a = a.abs() if a.min() < 0 else a
    total = a.sum(dim=-1, keepdim=True)
    if (total - 1).abs().max() < ROUNDING:  # softmax: nothing to do, and maps are large
        return a
    return a / total.clamp_min(torch.finfo(a.dtype).tiny)


def plogp(p: Tensor) -> Tensor:
    """p·log p, with 0·log 0 = 0. (torch.special.xlogy does the same, ten times slower on a CPU.)"""
    return (p + torch.finfo(p.dtype).tiny).log_().mul_(p)


class Collector:
    """A vital that compares blocks, or images. It sees every block of a batch, and answers at the batch's or at the
    pass's end: per image (B,), by block and part, or as a final number by block and part."""

    def tokens(self, block: int, x: Tensor, class_token: bool) -> None:
        """A block's output, (B, n, d)."""

    def map(self, block: int, a: Tensor) -> None:
        """A block's attention maps, (B, H, n, m)."""

    def end_of_batch(self, labels: Tensor | None) -> dict[int, dict[str, Tensor]]:
        return {}

    def final(self) -> dict[int, dict[str, Any]]:
        return {}

"""The registry of vitals and the helpers that they share.

A vital is a pure function of the tensors of one batch, registered with its description. File, function and key have the
same name. `of` names its input:

    tokens        x (B, n, d)                      output of a block
    growth        x, first (B, n, d)               output of a block, and the tokens before the first block
    change        before, after (B, n, d)          input and output of a block
    branches      x, f (B, n, d)                   residual stream, and what a branch adds to it; once per branch
    singular      σ (B, r), descending             singular values of the tokens at each of `sites`
    grid          x (B, h, w, d)                   patch tokens on their grid
    map           A (B, H, n, m)                   attention maps; of a treated model, the effective maps
    scores        P (B, H, n, m)                   inputs of softmax
    values        v (B, H, m, c)                   values of an attention
    map_values    A (B, H, n, m), v (B, H, m, c)   maps and values; A v is the output of the heads
    map_singular  σ (B, H, r), descending          singular values of the maps
    map_grid      A (B, H, p, p), distances (p, p) maps between patch tokens, and the distances of patches in pixels
    model         model, anatomy, images, blocks   the model itself, for bounds; returns values by part and block
    blocks                                         a `Collector`, which sees all blocks of a batch

It returns one number per image, (B,) or (B, H), or a dict of such by part. `unsmooth.diagnosis.measure` averages over
images as they arrive, so that memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError
from unsmooth.utils.precision import full as full

FAMILIES = ("similarity", "rank", "attention", "signal", "function", "theory")
OVER_TOKENS = ("global", "windowed", "pooled-kv", "pooled-q")
SQUARE = ("global", "windowed")
# Maximum number of images of a vital that is requested by name, and of one that is not (`default_sample`).
TOKEN_SAMPLE, TOKEN_DEFAULT = 64, 16  # tokens are decomposed at block outputs
SITE_SAMPLE, SITE_DEFAULT = 8, 4  # tokens are decomposed inside blocks
MAP_SAMPLE, MAP_DEFAULT = 8, 2  # maps are decomposed
MAPS_DEFAULT = 16  # maps are computed
MAP_SIDE = 256  # larger maps are computed or decomposed for fewer images
LARGEST_SIDE = 1024  # larger maps are decomposed only if the vital is requested by name
LARGEST_MAPS = 2**28  # entries of one image's maps (1 GiB) above which maps are computed only on request
THEORY_SAMPLE = 2  # images for bounds

ROUNDING = 1e-5  # tolerance for rows of softmax to sum to one

Values = Tensor | dict[str, Tensor]


@dataclass(frozen=True)
class Vital:
    """A measurement and its description, from which lists, tables and reports are made."""

    key: str
    measure: Callable[..., Any]
    title: str
    formula: str
    reading: str
    family: str
    of: str
    accepts: tuple[str, ...] = ()  # kinds of attention, for vitals of maps
    sites: tuple[str, ...] = ("",)  # where tokens are decomposed: block output, branch, residual sum
    sample: int | None = None  # maximum number of images; None: all
    default_sample: int | None = None  # the same where the vital is not requested by name; None: `sample`
    quick_sample: int | None = None  # the same in a quick diagnosis, for vitals without a sample; None: all
    cubic: bool = False  # cost is cubic in the size of the map, so larger maps get fewer images
    site_sample: int | None = None  # maximum number of images for sites other than the block output
    default_site_sample: int | None = None  # the same where the vital is not requested by name
    main: str = ""  # part shown in tables
    parts: tuple[tuple[str, str], ...] = ()  # names and descriptions of further parts
    low: float | None = None  # range, if it has one
    high: float | None = None
    default: bool = True
    undefined: str = "it is undefined here (0/0)"  # the reason for a block without a value

    @property
    def help(self) -> str:
        """The docstring of its module."""
        import sys

        return (sys.modules[self.measure.__module__].__doc__ or "").strip()

    def images(self, requested: bool) -> int | None:
        """Maximum number of images; None: all."""
        return self.sample if requested or self.default_sample is None else self.default_sample

    def site_images(self, requested: bool) -> int | None:
        """Maximum number of images for sites other than the block output; None: all."""
        return self.site_sample if requested or self.default_site_sample is None else self.default_site_sample


REGISTRY: dict[str, Vital] = {}


def register(**description: Any) -> Callable[[Any], Any]:
    """Register a function or a `Collector` class as a vital. The key is the name of the module."""

    def decorate(measure: Any) -> Any:
        key = measure.__module__.rsplit(".", 1)[-1]
        assert description["family"] in FAMILIES and key not in REGISTRY
        REGISTRY[key] = Vital(key, measure, **description)
        return measure

    return decorate


class Undefined(UnsmoothError):
    """A vital has no value on a block. The message is shown as the reason."""


def distribution(a: Tensor) -> Tensor:
    """The rows of a map as distributions. Rows of effective maps are normalised absolute values."""
    a = full(a)
    a = a.abs() if a.min() < 0 else a
    total = a.sum(dim=-1, keepdim=True)
    if (total - 1).abs().max() < ROUNDING:  # rows of softmax need no copy
        return a
    return a / total.clamp_min(torch.finfo(a.dtype).tiny)


def plogp(p: Tensor) -> Tensor:
    """p·log p, with 0·log 0 = 0. Ten times as fast as torch.special.xlogy on a CPU."""
    return (p + torch.finfo(p.dtype).tiny).log_().mul_(p)


class Collector:
    """A vital that compares blocks or images.

    It receives the tokens and maps of every block of a batch. It returns values per image, (B,), at the end of a batch,
    or final numbers at the end of the pass, by block and part.
    """

    def tokens(self, block: int, x: Tensor, class_token: bool) -> None:
        """Receive the output of a block, (B, n, d)."""

    def map(self, block: int, a: Tensor) -> None:
        """Receive the attention maps of a block, (B, H, n, m)."""

    def end_of_batch(self, labels: Tensor | None) -> dict[int, dict[str, Tensor]]:
        """Values per image, by block and part."""
        return {}

    def merge(self, other: Any) -> None:
        """Add what a collector of the same kind has kept, of other batches. Needed if `final` returns values."""

    def final(self) -> dict[int, dict[str, Any]]:
        """Values of the pass, by block and part."""
        return {}

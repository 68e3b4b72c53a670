"""Where patch tokens come from: the module that cuts an image into patches, and where its tokens leave it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from timm.layers import to_2tuple
from torch import nn

from unsmooth.hosts.trace import Trace

PATCH_EMBEDDINGS = ("patch_embed", "patch_embed1", "patch_embeddings", "patch_embedding", "conv_proj", "stem")


@dataclass(frozen=True)
class HookPoint:
    """A place where tokens pass: what a module takes in, or what it gives out."""

    module: str
    side: str  # "input" or "output"
    channels_last: bool = True


@dataclass(frozen=True)
class PatchEmbedding:
    """Where patch tokens leave the embedding, and the convolution that cuts the image into patches."""

    hook_point: HookPoint
    tokens: int
    channels: int
    convolution: str
    kernel: tuple[int, int]
    image_channels: int
    overlap: bool

    def tokens_of(self, tokens: int) -> int:
        """How many of a block's tokens are patches: a pyramid has a quarter of them in each further stage."""
        count = self.tokens
        while count > tokens and count % 4 == 0:
            count //= 4
        return count


def parents(name: str) -> Iterable[str]:
    """A module's own name, then the names of what holds it, inside out."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def find_patch_embedding(record: Trace, modules: dict[str, nn.Module]) -> PatchEmbedding | None:
    """Where the host cuts its image into patches: its first convolution, or an unfolding."""
    call = next((call for call in record.calls if isinstance(call.module, nn.Conv2d)), None)
    if call is None:
        return _soft_split(record)
    if call.output is None:
        return None
    convolution = call.module
    assert isinstance(convolution, nn.Conv2d)
    outside_in = reversed(list(parents(call.name)))
    named = [
        n for n in outside_in if n.split(".")[-1] in PATCH_EMBEDDINGS and not isinstance(modules[n], nn.ModuleList)
    ]
    name = named[0] if named else call.name
    holder = next(c for c in record.calls if c.name == name)
    shape = holder.output or call.output
    if len(shape) == 4 and shape[-1] != convolution.out_channels:
        channels, tokens, last = shape[1], shape[2] * shape[3], False
    else:
        channels, tokens, last = shape[-1], math.prod(shape[1:-1]), True
    kernel, stride = tuple(convolution.kernel_size), tuple(convolution.stride)
    return PatchEmbedding(
        HookPoint(name, "output", last), tokens, channels, call.name, (kernel[0], kernel[1]), convolution.in_channels,
        kernel != stride or any(p != 0 for p in convolution.padding if not isinstance(p, str)),
    )  # fmt: skip


def _soft_split(record: Trace) -> PatchEmbedding | None:
    """Tokens that are cut by unfolding, as in T2T-ViT: overlapping windows, and what the module around them gives."""
    cut = next((call for call in record.calls if isinstance(call.module, nn.Unfold)), None)
    holder = next((call for call in record.calls if cut and call.name == cut.name.rpartition(".")[0]), None)
    if cut is None or holder is None or not holder.input or not holder.output or len(holder.output) != 3:
        return None
    assert isinstance(cut.module, nn.Unfold)
    side: tuple[int, int] = to_2tuple(cut.module.kernel_size)
    return PatchEmbedding(
        HookPoint(holder.name, "output"), holder.output[1], holder.output[2], cut.name, side, holder.input[1], True
    )

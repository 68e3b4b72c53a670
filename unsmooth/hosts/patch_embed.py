"""The patch embedding of a host: the module that splits an image, a clip or a signal into patches.

It is the first convolution, in one, two or three dimensions; an unfold; or, where pixels were rearranged before, the
first linear layer that reads as many numbers as the input has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from timm.layers import to_2tuple
from torch import nn

from unsmooth.hosts.trace import Trace

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
PATCH_EMBEDDINGS = ("patch_embed", "patch_embed1", "patch_embeddings", "patch_embedding", "conv_proj", "stem")
LINEAR_EMBEDDINGS = ("to_patch_embedding", "to_patch_tokens")


@dataclass(frozen=True)
class HookPoint:
    """A place where tokens can be read and changed: the input or the output of a module."""

    module: str
    side: str  # "input" or "output"
    channels_last: bool = True


@dataclass(frozen=True)
class PatchEmbedding:
    """The hook point of the patch tokens, and the convolution or linear layer that makes them.

    `grid` has the number of patches along each axis of the input: rows and columns of an image, before them the frames
    of a clip. `extent` is the length of these axes in pixels, frames or samples. Both are () if unknown, and `kernel`
    is () for a linear layer.
    """

    hook_point: HookPoint
    tokens: int
    channels: int
    convolution: str
    kernel: tuple[int, ...]
    image_channels: int
    overlap: bool
    grid: tuple[int, ...] = ()
    extent: tuple[int, ...] = ()

    def tokens_of(self, tokens: int) -> int:
        """The number of patches of a block; each stage of a pyramid has a quarter of the previous one."""
        count = self.tokens
        while count > tokens and count % 4 == 0:
            count //= 4
        return count


def parents(name: str) -> Iterable[str]:
    """The name of a module, then the names of the modules around it, from the inside out."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def find_patch_embedding(traced: Trace, modules: dict[str, nn.Module]) -> PatchEmbedding | None:
    """The patch embedding of a host, from a trace of one input: its first convolution, or a layer on whole patches."""
    listed = _linear_split(traced)
    if listed is not None:
        return listed
    call = next((call for call in traced.calls if isinstance(call.module, Convolution)), None)
    if call is None:
        return _soft_split(traced) or _linear_patches(traced)
    if call.output is None or call.input is None:
        return None
    convolution = call.module
    assert isinstance(convolution, Convolution)
    outside_in = reversed(list(parents(call.name)))
    named = [
        n for n in outside_in if n.split(".")[-1] in PATCH_EMBEDDINGS and not isinstance(modules[n], nn.ModuleList)
    ]
    name = named[0] if named else call.name
    holder = next(c for c in traced.calls if c.name == name)
    shape = holder.output or call.output
    if len(shape) == len(call.output) and shape[-1] != convolution.out_channels:
        channels, inner, last = shape[1], math.prod(shape[2:]), False
    else:
        channels, inner, last = shape[-1], math.prod(shape[1:-1]), True
    kernel, stride = tuple(convolution.kernel_size), tuple(convolution.stride)
    frames = call.output[:1] if call.output[0] > 1 else ()  # the frames of one clip as a batch
    whole = holder.output is not None and holder.output[0] == call.output[0]
    tokens = inner * (math.prod(frames) if whole else 1)
    return PatchEmbedding(
        HookPoint(name, "output", last), tokens, channels, call.name, kernel, convolution.in_channels,
        kernel != stride or any(p != 0 for p in convolution.padding if not isinstance(p, str)),
        (*frames, *call.output[2:]), (*frames, *call.input[2:]),
    )  # fmt: skip


def _soft_split(traced: Trace) -> PatchEmbedding | None:
    """The patch embedding of T2T-ViT: an unfold into overlapping windows, and the output of the module around it."""
    unfold = next((call for call in traced.calls if isinstance(call.module, nn.Unfold)), None)
    holder = next((call for call in traced.calls if unfold and call.name == unfold.name.rpartition(".")[0]), None)
    if unfold is None or holder is None or not holder.input or not holder.output or len(holder.output) != 3:
        return None
    assert isinstance(unfold.module, nn.Unfold)
    side: tuple[int, int] = to_2tuple(unfold.module.kernel_size)
    return PatchEmbedding(
        HookPoint(holder.name, "output"), holder.output[1], holder.output[2], unfold.name, side, holder.input[1], True
    )


def _linear_split(traced: Trace) -> PatchEmbedding | None:
    """The patch embedding of vit-pytorch: pixels are rearranged into patches, without a convolution."""
    holder = next((call for call in traced.calls if call.name.split(".")[-1] in LINEAR_EMBEDDINGS), None)
    if holder is None or holder.input is None or holder.output is None or len(holder.input) != 4:
        return None
    inside = [call for call in traced.calls if holder.start < call.start < holder.end]
    linear = next((call.module for call in inside if isinstance(call.module, nn.Linear)), None)
    tokens, channels = math.prod(holder.output[1:-1]), holder.output[-1]
    image_channels, height, width = holder.input[1:]
    side = math.isqrt(height * width // tokens)
    if linear is None or side**2 * tokens != height * width or any(isinstance(c.module, nn.Conv2d) for c in inside):
        return None
    return PatchEmbedding(
        HookPoint(holder.name, "output"), tokens, channels, holder.name, (side, side), image_channels,
        linear.in_features != image_channels * side**2, (height // side, width // side), (height, width),
    )  # fmt: skip


def _linear_patches(traced: Trace) -> PatchEmbedding | None:
    """The patch embedding of other hosts that rearrange the pixels first: the linear layer that reads all of them."""
    pixels = next((math.prod(call.input) for call in traced.calls if call.input), 0)
    first = next((event for event in traced.linears if event.rows * event.inputs == pixels), None)
    call = next((call for call in traced.calls if first and call.name == first.stack[-1]), None)
    if first is None or call is None or not isinstance(call.module, nn.Linear) or not call.output:
        return None
    if len(call.output) != 3 or first.rows < 2:
        return None
    return PatchEmbedding(HookPoint(call.name, "output"), first.rows, first.outputs, call.name, (), first.inputs, False)

"""The bands of a token matrix: its mean token (DC) and the rest (HC).

    DC[X] = JX,  J = 11ᵀ/n        every row is the mean token
    HC[X] = X − DC[X]
    mix(X, low, high) = low·DC[X] + high·HC[X]

FeatScale is a mix with low = 1+s, high = 1+t; Context Broadcasting is one with low = 1, high = ½. Mixes compose:
mix(mix(X, l, h), l', h') = mix(X, l·l', h·h'), so several of them can be folded into one weight matrix.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Gain = Tensor | float


def token_axes(x: Tensor, channels_last: bool = True) -> tuple[int, ...]:
    """The token axes of `x`: all but the batch and the channels."""
    if channels_last:
        return (1,) if x.ndim == 3 else tuple(range(1, x.ndim - 1))
    return tuple(range(2, x.ndim))


def along_channels(gain: Gain, x: Tensor, channels_last: bool = True) -> Gain:
    """A per-channel gain in a shape that broadcasts against `x`."""
    if isinstance(gain, float | int) or gain.ndim == 0 or channels_last:
        return gain
    return gain.view(-1, *(1,) * (x.ndim - 2))


def mean_token(x: Tensor, channels_last: bool = True) -> Tensor:
    """The mean over tokens, with the token axes kept as size 1."""
    return x.mean(dim=token_axes(x, channels_last), keepdim=True)


def split(x: Tensor, channels_last: bool = True) -> tuple[Tensor, Tensor]:
    """DC[X], in a shape that broadcasts against X, and HC[X]."""
    low = mean_token(x, channels_last)
    return low, x - low


def sum_and_factor(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, float]:
    """A tensor and a factor whose product is the mean over axes, which are kept as size 1.

    On small tensors a mean takes twice the time of a sum, and the next operation can multiply by the factor. A graph
    gets the mean, as the factor would be a constant there; so does half precision, where a sum may overflow.
    """
    if x.dtype is not torch.float32 or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return x.mean(dim=axes, keepdim=True), 1.0
    if len(axes) == 1:
        return x.sum(axes[0], True), 1.0 / x.shape[axes[0]]
    return x.sum(dim=axes, keepdim=True), 1.0 / math.prod(x.shape[axis] for axis in axes)


def add_mean(x: Tensor, gain: Tensor, channels_last: bool = True) -> Tensor:
    """x + gain · DC[x]."""
    total, factor = sum_and_factor(x, token_axes(x, channels_last))
    if not channels_last and gain.ndim:
        gain = gain.view(-1, *(1,) * (x.ndim - 2))
    return x.add(total * gain, alpha=factor)


def shift(x: Tensor, s: Tensor, t: Tensor, channels_last: bool = True) -> Tensor:
    """Gain 1 + s on the mean token and 1 + t on the rest."""
    total, factor = sum_and_factor(x, token_axes(x, channels_last))
    difference = s - t
    if not channels_last:
        t, difference = (gain.view(-1, *(1,) * (x.ndim - 2)) for gain in (t, difference))
    return x.addcmul(x, t).addcmul(total, difference, value=factor)


def mix(x: Tensor, low: Gain, high: Gain, channels_last: bool = True) -> Tensor:
    """Gain `low` on the mean token and `high` on the rest, in one pass over `x`."""
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        low, high = along_channels(low, x, channels_last), along_channels(high, x, channels_last)
        offset = (low - high) * mean_token(x, channels_last)
        return offset.addcmul(x, high) if isinstance(high, Tensor) else offset.add(x, alpha=high)
    total, factor = sum_and_factor(x, token_axes(x, channels_last))
    return (total * ((low - high) * factor)).add(x, alpha=high)

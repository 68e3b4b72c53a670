"""The bands of a token matrix: its mean token (DC) and the rest (HC).

    DC[X] = JX,  J = 11ᵀ/n        every row is the mean token
    HC[X] = X − DC[X]
    mix(X, low, high) = low·DC[X] + high·HC[X]

FeatScale is a mix with low = 1+s, high = 1+t; Context Broadcasting is one with low = 1, high = ½. Mixes compose:
mix(mix(X, l, h), l', h') = mix(X, l·l', h·h'), so several of them can be folded into one weight matrix.
"""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

Gain = Tensor | float
FEW = 2**16  # numbers, up to which an operation takes longer to start than to run


def token_axes(x: Tensor, channels_last: bool = True) -> tuple[int, ...]:
    """The token axes of `x`: all but the batch and the channels."""
    return tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))


@overload
def along_channels(gain: Tensor, x: Tensor, channels_last: bool = True) -> Tensor: ...


@overload
def along_channels(gain: Gain, x: Tensor, channels_last: bool = True) -> Gain: ...


def along_channels(gain: Gain, x: Tensor, channels_last: bool = True) -> Gain:
    """A per-channel gain in a shape that broadcasts against `x`."""
    if channels_last or isinstance(gain, float | int) or gain.ndim == 0:
        return gain
    return gain.view(-1, *(1,) * (x.ndim - 2))


def mean_token(x: Tensor, channels_last: bool = True) -> Tensor:
    """The mean over tokens, with the token axes kept as size 1."""
    return x.mean(dim=token_axes(x, channels_last), keepdim=True)


def is_small(x: Tensor) -> bool:
    """Whether the fewest operations take the least time, and not the fewest passes over `x`; never while compiling.

    Half-precision tokens are never small: their sum, which stands for the mean in fewer operations, could overflow.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():
        return False
    return x.numel() <= FEW and x.dtype in (torch.float32, torch.float64)


def add_mean(base: Tensor, x: Tensor, share: Gain, channels_last: bool = True) -> Tensor:
    """base + share·DC[X]."""
    if is_small(x):
        return add_small_mean(base, x, share, channels_last)
    return base + along_channels(share, x, channels_last) * mean_token(x, channels_last)


def add_small_mean(base: Tensor, x: Tensor, share: Gain, channels_last: bool = True) -> Tensor:
    """base + share·DC[X] in the fewest operations, for `x` that `is_small`."""
    share = along_channels(share, x, channels_last)
    total = x.sum(token_axes(x, channels_last), keepdim=True)
    inverse = total.numel() / max(x.numel(), 1)  # of the number of tokens
    if isinstance(share, Tensor):
        return base.addcmul(total, share, value=inverse)
    return base.add(total, alpha=share * inverse)


def split(x: Tensor, channels_last: bool = True) -> tuple[Tensor, Tensor]:
    """DC[X], in a shape that broadcasts against X, and HC[X]."""
    low = mean_token(x, channels_last)
    return low, x - low


def mix(x: Tensor, low: Gain, high: Gain, channels_last: bool = True) -> Tensor:
    """Gain `low` on the mean token and `high` on the rest, in one pass over `x` unless it is small."""
    if isinstance(low, float) and isinstance(high, float) and high and is_small(x):
        return high * add_small_mean(x, x, low / high - 1, channels_last)
    low, high = along_channels(low, x, channels_last), along_channels(high, x, channels_last)
    offset = (low - high) * mean_token(x, channels_last)
    if isinstance(high, Tensor):
        return offset.addcmul(x, high)
    return offset.add(x, alpha=high)

"""The bands of a token matrix: its mean token (DC) and the rest (HC).

    DC[X] = JX,  J = 11ᵀ/n        every row is the mean token
    HC[X] = X − DC[X]
    mix(X, low, high) = low·DC[X] + high·HC[X]

FeatScale is a mix with low = 1+s, high = 1+t; Context Broadcasting is one with low = 1, high = ½. Mixes compose:
mix(mix(X, l, h), l', h') = mix(X, l·l', h·h'), so several of them can be folded into one weight matrix.
"""

from __future__ import annotations

from torch import Tensor

Gain = Tensor | float


def token_axes(x: Tensor, channels_last: bool = True) -> tuple[int, ...]:
    """The token axes of `x`: all but the batch and the channels."""
    return tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))


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


def mix(x: Tensor, low: Gain, high: Gain, channels_last: bool = True) -> Tensor:
    """Gain `low` on the mean token and `high` on the rest, in one pass over `x`."""
    low, high = along_channels(low, x, channels_last), along_channels(high, x, channels_last)
    offset = (low - high) * mean_token(x, channels_last)
    if isinstance(high, Tensor):
        return offset.addcmul(x, high)
    return offset.add(x, alpha=high)

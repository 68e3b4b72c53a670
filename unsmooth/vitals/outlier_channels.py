"""Outlier channels: the largest entry of each channel, and what channels of very large entries mean for int8.

    c_k = max_i |x_ik|,   value: max_k c_k / median_k c_k

per image, at block outputs. `count` is the number of channels with c_k > 10·median. The parts `int8` are the relative
errors ‖x − Q(x)‖/‖x‖ of symmetric rounding to 8 bits, Q(x) = s·round(x/s), s = max|x|/127: with one scale for all
tokens (`int8`), one per token (`int8.token`) and one per channel (`int8.channel`). `int8.rest` is the error of all
other channels under the scale of all tokens, relative to those channels: it is what an outlier channel costs the rest,
and the reason to keep outlier channels in higher precision (Dettmers et al., LLM.int8(), 2022). At 1, they are rounded
to zero.

Hosts that compute in int8 usually quantise the inputs of linear layers, which follow a norm layer; the residual stream
measured here is quantised in integer-only inference. Channels of equal size give 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.vitals.base import TOKEN_DEFAULT, full, register

OUTLIER, LEVELS = 10.0, 127


def rounding(x: Tensor, largest: Tensor) -> Tensor:
    """x − Q(x) for entries of at most `largest`."""
    step = (largest / LEVELS).clamp_min(torch.finfo(x.dtype).tiny)
    return x - step * (x / step).round()


def _ratio(error: Tensor, x: Tensor) -> Tensor:
    return error.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)


@register(
    title="outlier channels",
    formula="max_k c_k / median_k c_k, c_k = max_i |x_ik|",
    reading="near 1: channels are alike; in the tens: one scale for all channels rounds the others away in int8",
    family="signal",
    of="tokens",
    sample=TOKEN_DEFAULT,
    default=False,
    parts=(
        ("count", "number of channels above 10 times the median"),
        ("int8", "relative error of int8 with one scale"),
        ("int8.token", "the same with one scale per token"),
        ("int8.channel", "the same with one scale per channel"),
        ("int8.rest", "error of the other channels under one scale, relative to them"),
    ),
    low=1.0,
)
def outlier_channels(x: Tensor) -> dict[str, Tensor]:
    x = full(x)
    size = x.abs()
    channel, token = size.amax(dim=1, keepdim=True), size.amax(dim=2, keepdim=True)
    largest, median = channel.amax(dim=2, keepdim=True), channel.quantile(0.5, dim=2, keepdim=True)
    outlying = channel > OUTLIER * median
    error, rest = rounding(x, largest), x.masked_fill(outlying, 0)
    return {
        "": (largest / median).flatten(),
        "count": outlying.sum(dim=(1, 2)).to(x.dtype),
        "int8": _ratio(error, x),
        "int8.token": _ratio(rounding(x, token), x),
        "int8.channel": _ratio(rounding(x, channel), x),
        "int8.rest": _ratio(error.masked_fill(outlying, 0), rest),
    }

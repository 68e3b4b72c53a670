"""Massive activations: the largest |x_ik| of the tokens of one image, divided by the median |x_ik|.

Sun et al. (Massive Activations in Large Language Models, 2024) call an entry massive if |x_ik| > 100 and it is more
than 1000 times the median. `count` is the number of such entries, `channels` the number of channels that have one,
`largest` the largest |x_ik|. They sit in a few fixed channels of a few tokens, which become attention sinks, and act as
a bias. Measured at block outputs. Entries of equal size give 1.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import TOKEN_DEFAULT, full, register

SIZE, RATIO = 100.0, 1000.0


@register(
    title="massive activations",
    formula="max |x_ik| / median |x_ik|",
    reading="in the tens: normal; above 1000: a few entries act as a bias of the model",
    family="signal",
    of="tokens",
    sample=TOKEN_DEFAULT,
    default=False,
    parts=(
        ("largest", "largest |x_ik|"),
        ("count", "number of entries above 100 and above 1000 times the median"),
        ("channels", "number of channels with such an entry"),
    ),
    low=1.0,
)
def massive_activations(x: Tensor) -> dict[str, Tensor]:
    size = full(x).abs()
    flat = size.flatten(1)
    median = (flat.median(dim=1).values + -(-flat).median(dim=1).values) / 2  # of an even number, the middle two
    massive = (size > SIZE) & (size > RATIO * median[:, None, None])
    largest = flat.amax(dim=1)
    return {
        "": largest / median,
        "largest": largest,
        "count": massive.sum(dim=(1, 2)).to(size.dtype),
        "channels": massive.any(dim=1).sum(dim=1).to(size.dtype),
    }

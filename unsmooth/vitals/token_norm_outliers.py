"""Outlier tokens: the number of tokens with ‖x_i‖ > median + k·MAD, k = 10, over the tokens of one image.

Large models store global information in a few tokens of very large norm ("registers"). Measured at block outputs,
before the final norm. `largest` is the largest norm, `ratio` the largest norm divided by the median norm. Equal tokens
have no outliers.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import full, register

DEVIATIONS = 10.0


@register(
    title="token-norm outliers",
    formula="number of i with ‖x_i‖ > median + 10·MAD",
    reading="0: none; a few tokens of very large norm act as registers",
    family="signal",
    of="tokens",
    parts=(("largest", "largest norm"), ("ratio", "largest norm divided by the median norm")),
    low=0.0,
)
def token_norm_outliers(x: Tensor, deviations: float = DEVIATIONS) -> dict[str, Tensor]:
    norms = full(x).norm(dim=-1)
    median = norms.quantile(0.5, dim=-1, keepdim=True)  # of an even number of tokens, the mean of the middle two
    spread = (norms - median).abs().quantile(0.5, dim=-1, keepdim=True)
    # The tolerance keeps rounding from making equal tokens differ.
    count = (norms > median + deviations * spread + 1e-5 * median).sum(dim=-1)
    largest = norms.amax(dim=-1)
    return {"": count.to(norms.dtype), "largest": largest, "ratio": largest / median.squeeze(-1)}

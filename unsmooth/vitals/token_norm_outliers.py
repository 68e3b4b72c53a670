"""Tokens of unusual size: how many have ‖x_i‖ > median + k·MAD, k = 10, over the tokens of one image.

Large models put global information into a few tokens of huge norm ("registers"). Taken at block outputs, so before the
final norm. `largest` is the largest norm, `ratio` that over the median one. Equal tokens have no outlier.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.vitals.base import full, register

DEVIATIONS = 10.0


@register(
    title="token-norm outliers",
    formula="number of i with ‖x_i‖ > median + 10·MAD",
    reading="0: none; a few tokens far above the rest act as registers",
    family="signal",
    of="tokens",
    parts=(("largest", "largest norm"), ("ratio", "largest norm over the median norm")),
    low=0.0,
)
def token_norm_outliers(x: Tensor, deviations: float = DEVIATIONS) -> dict[str, Tensor]:
    norms = full(x).norm(dim=-1)
    median = norms.quantile(0.5, dim=-1, keepdim=True)  # of an even number, the mean of the middle two
    spread = (norms - median).abs().quantile(0.5, dim=-1, keepdim=True)
    # Rounding alone must not make equal tokens differ.
    count = (norms > median + deviations * spread + 1e-5 * median).sum(dim=-1)
    largest = norms.amax(dim=-1)
    return {"": count.to(norms.dtype), "largest": largest, "ratio": largest / median.squeeze(-1)}

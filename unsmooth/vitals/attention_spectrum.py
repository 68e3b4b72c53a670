"""Spectrum of attention maps: ‖Λ_i‖₂, the row norms of Λ = F A F⁻¹, with F the unitary Fourier transform over tokens.

The response of a map to the i-th frequency, per head (anti-oversmoothing, F.2; Figures 2, 5, 9 and 10). F⁻¹ is
unitary, so the row norms need one transform over the queries. `curve` holds frequencies 0 to n/2; the others mirror
them, because A is real. The value is the share above frequency zero, √(Σ_{i≥1}‖Λ_i‖²) / ‖Λ‖_F: 0 for the uniform map,
which keeps only the mean token, and √((n−1)/n) for the identity. A map without negative entries responds to no
frequency more than to zero; band-pass and high-pass filters need negative entries, which AttnScale makes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.vitals.base import MAP_DEFAULT, MAP_SAMPLE, SQUARE, full, register


@register(
    title="map spectrum",
    formula="‖Λ_i‖₂, Λ = F A F⁻¹; the value is √(Σ_{i≥1}‖Λ_i‖²)/‖Λ‖_F",
    reading="0: the map keeps only the mean token; near 1: it passes all frequencies",
    family="attention",
    of="map",
    accepts=SQUARE,
    sample=MAP_SAMPLE,
    default_sample=MAP_DEFAULT,
    parts=(("curve", "‖Λ_i‖₂ by frequency, 0 to n/2"),),
    low=0.0,
    high=1.0,
)
def attention_spectrum(a: Tensor) -> dict[str, Tensor]:
    a = full(a)
    rows = torch.fft.rfft(a, dim=-2, norm="ortho").abs().square().sum(dim=-1).sqrt()
    # Frequency 0 is the mean row. To subtract its energy from the whole would leave rounding errors of the FFT.
    high = (a - a.mean(dim=-2, keepdim=True)).square().sum(dim=(-2, -1))
    return {"": (high / a.square().sum(dim=(-2, -1))).sqrt(), "curve": rows}

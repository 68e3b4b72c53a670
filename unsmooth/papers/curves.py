"""Curves of a diagnosis by block: a vital, a reduction of its curves by head, or a learned parameter of a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from unsmooth.errors import unknown
from unsmooth.papers.catalogue import Curve
from unsmooth.papers.trials import by_block
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.reproduction import MeasuredCurve

Array = np.ndarray[Any, np.dtype[np.float64]]


def _upper_response(spectra: Array) -> float:
    """Mean response to the upper half of frequencies as a multiple of that to frequency zero, largest over heads."""
    upper = spectra[:, (spectra.shape[1] + 1) // 2 :].mean(axis=1)
    return float((upper / spectra[:, 0]).max())


def _peak_response(spectra: Array) -> float:
    """Largest response above frequency zero as a multiple of that to frequency zero, largest over heads."""
    return float((spectra[:, 1:].max(axis=1) / spectra[:, 0]).max())


# Reductions of curves by head (heads × positions) to one number.
REDUCTIONS: dict[str, Callable[[Array], float]] = {
    "upper response": _upper_response, "peak response": _peak_response,
}  # fmt: skip


def curve_by_block(diagnosis: Diagnosis, curve: Curve) -> MeasuredCurve | None:
    """The values of a curve by block; None if the diagnosis does not have them."""
    if curve.learned:
        return _learned(diagnosis, curve.learned)
    if curve.reduce:
        return _reduced(diagnosis, curve)
    return by_block(diagnosis, curve)


def _reduced(diagnosis: Diagnosis, curve: Curve) -> MeasuredCurve | None:
    if curve.reduce not in REDUCTIONS:
        raise unknown("reduction of a curve", curve.reduce, REDUCTIONS)
    vital = diagnosis.vitals.get(curve.vital)
    series = None if vital is None else vital.parts.get(curve.part)
    if series is None:
        return None
    means = [None if spread is None else np.array(spread.mean, dtype=np.float64) for spread in series]
    return _curve([None if spectra is None else REDUCTIONS[curve.reduce](spectra) for spectra in means])


def _learned(diagnosis: Diagnosis, expression: str) -> MeasuredCurve | None:
    """The mean of a parameter by block, such as "attn_scale.omega", or a difference: "feat_scale.t - feat_scale.s"."""
    names = [name.strip() for name in expression.split(" - ")]
    means = [
        {p.block: p.mean for p in diagnosis.learned if f"{p.remedy}.{p.parameter}" == name and p.block is not None}
        for name in names
    ]
    if not all(means):
        return None
    values: list[float | None] = []
    for block in range(diagnosis.blocks):
        learned = [mean.get(block) for mean in means]
        known = [number for number in learned if number is not None]
        values.append(known[0] - sum(known[1:]) if len(known) == len(learned) else None)
    return _curve(values)


def _curve(values: list[float | None]) -> MeasuredCurve:
    return MeasuredCurve(by="block", mean=values, sd=[None] * len(values))

"""Anti-oversmoothing: products of softmax maps are low-pass filters."""

from __future__ import annotations

from unsmooth.papers.theorems.draws import TOKENS, Theorem, normal, row
from unsmooth.results.reproduction import ArmResult
from unsmooth.theory.anti_oversmoothing import low_pass_ratios


def low_pass(small: bool) -> list[ArmResult]:
    """‖HC‖/‖DC‖ after products of more and more softmax maps approaches 0."""
    depth, images = 12, 16 if small else 256
    x = normal(images, TOKENS, 32) + 1
    rows = []
    for beta in (0.5, 2.0):
        maps = (beta * normal(depth, images, TOKENS, TOKENS)).softmax(-1)
        ratios = low_pass_ratios(maps, x).mean(1).log10().tolist()
        rows.append(row(f"logits of deviation {beta:g}", "map", range(depth + 1), {"log₁₀ ‖HC‖/‖DC‖": ratios}))
    return rows


THEOREMS: dict[str, Theorem] = {"low_pass": low_pass}

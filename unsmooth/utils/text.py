"""Format numbers and lists for display."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def spans(indices: Iterable[Any]) -> str:
    """0, 1, 2, 5 as "0–2, 5"."""
    runs: list[list[int]] = []
    for index in sorted({int(i) for i in indices}):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def blocks_text(indices: Iterable[Any]) -> str:
    """ "block 3", "blocks 0–2, 5" or an empty string."""
    text = spans(indices)
    return f"block{'' if text.isdigit() else 's'} {text}" if text else ""


def format_energy(millijoules: float) -> str:
    """An energy with a suitable unit: 21.17 mJ, 624 µJ."""
    if millijoules >= 1:
        return f"{rounded(millijoules, 4)} mJ"
    return f"{rounded(1000 * millijoules, 3)} µJ"


def rounded(value: float, digits: int) -> str:
    """A number with `digits` significant digits, including trailing zeros; integer digits are never dropped."""
    places = digits - 1 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:,.{max(0, places)}f}"

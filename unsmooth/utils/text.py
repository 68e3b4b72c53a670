"""Format numbers and lists for display."""

from __future__ import annotations

import math


def spans(indices: list[int]) -> str:
    """0, 1, 2, 5 as "0–2, 5"."""
    runs: list[list[int]] = []
    for i in indices:
        if runs and i == runs[-1][-1] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def blocks_text(indices: list[int]) -> str:
    """ "block 3" or "blocks 0–2, 5"."""
    return f"block{'s' if len(indices) > 1 else ''} {spans(indices)}"


def in_words(millijoules: float) -> str:
    """An energy with a suitable unit: 21.17 mJ, 624 µJ."""
    if millijoules >= 1:
        return f"{rounded(millijoules, 4)} mJ"
    return f"{rounded(1000 * millijoules, 3)} µJ"


def rounded(value: float, digits: int) -> str:
    """A number with `digits` significant digits, including trailing zeros; integer digits are never dropped."""
    places = digits - 1 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:,.{max(0, places)}f}"

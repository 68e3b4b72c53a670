"""Numbers and lists as people write them."""

from __future__ import annotations


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

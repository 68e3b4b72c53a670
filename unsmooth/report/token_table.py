"""Scores of the tokens of each block as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.text import Text

from unsmooth.report.terminal import WideTable, plain_text
from unsmooth.report.token_names import METRICS, PROBES, TOKENS
from unsmooth.utils.text import blocks_text

if TYPE_CHECKING:
    from unsmooth.results.evaluation import BlockScore, TokenProbe, TokenScores


def as_text(scores: TokenScores) -> str:
    return plain_text(as_rich(scores), width=80)


def as_rich(scores: TokenScores) -> list[RenderableType]:
    """Scores by block, the best block of each probe, and skipped items."""
    table = WideTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("block", justify="right")
    table.add_column("token\ncosine", justify="right")
    for probe in scores.probes:
        table.add_column(f"{TOKENS[probe.tokens]}\n{PROBES[probe.probe]}", justify="right", no_wrap=True)
    for block in sorted({score.block for probe in scores.probes for score in probe.blocks}):
        cells = [next((_cell(s) for s in probe.blocks if s.block == block), "–") for probe in scores.probes]
        similarity = scores.similarity.get(block)
        table.add_row(str(block), "–" if similarity is None else f"{similarity:.2f}", *cells)
    pieces: list[RenderableType] = [Text(_head(scores)), table, *(Text(best_block(probe)) for probe in scores.probes)]
    reasons: dict[str, list[int]] = {}
    for block, reason in scores.skipped.items():
        reasons.setdefault(reason, []).append(block)
    pieces += [Text(f"{blocks_text(blocks)} skipped: {reason}", style="dim") for reason, blocks in reasons.items()]
    if scores.skipped_images:
        name, reason = next(iter(scores.skipped_images.items()))
        pieces.append(Text(f"{len(scores.skipped_images)} images were skipped. First: {name}: {reason}", style="dim"))
    return pieces


def best_block(probe: TokenProbe) -> str:
    """How much the best block exceeds the last one, with the paired interval."""
    best, last = max(probe.blocks, key=lambda score: score.score), probe.blocks[-1]
    name = f"{TOKENS[probe.tokens]}, {PROBES[probe.probe]}"
    if best is last:
        return f"{name}: the last block, {last.block}, is the best"
    low, high = best.gain_interval
    return (
        f"{name}: best is block {best.block}, {100 * best.gain:.1f} points above block {last.block} "
        f"({100 * low:.1f} to {100 * high:.1f})"
    )


def _head(scores: TokenScores) -> str:
    metric = METRICS[scores.probes[0].metric]
    tokens = f", {scores.memory_tokens:,} tokens" if scores.memory_tokens else ""
    ceiling = f", of whole patches {100 * max(scores.ceiling.values()):.1f}" if scores.ceiling else ""
    return (
        f"frozen tokens by block: {metric} in % with 95 % interval, {scores.images:,} images of {scores.data} "
        f"(memory: {scores.memory_images:,} images{tokens}; chance {100 * scores.chance:.1f}{ceiling})"
    )


def _cell(score: BlockScore) -> str:
    low, high = score.interval
    return f"{100 * score.score:.1f} {100 * low:.1f}–{100 * high:.1f}"

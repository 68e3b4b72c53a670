"""Scores of the tokens of each block beside their similarity, as a figure for print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unsmooth.report import panels
from unsmooth.report.figures import new_figure
from unsmooth.report.token_names import METRICS, PROBES, TOKENS

if TYPE_CHECKING:
    from unsmooth.results.evaluation import TokenScores

HEIGHT = 1.6  # inches per row


@rc_context(panels.STYLE)
def token_figure(scores: Mapping[str, TokenScores]) -> Figure:
    """One row per data: the similarity of tokens on the left, each probe by block with its intervals on the right.

    Args:
        scores: Token scores by title.
    """
    figure, axes = new_figure(len(scores), 2, HEIGHT)
    for row, (title, one) in enumerate(scores.items()):
        left, right = axes[2 * row], axes[2 * row + 1]
        blocks = 1 + max(score.block for probe in one.probes for score in probe.blocks)
        panels.by_block(left, blocks, f"{title}: similarity of tokens")
        left.plot(list(one.similarity), list(one.similarity.values()), color=panels.GREY, marker="o", markersize=2)
        left.set_ylabel("mean |cosine|")
        left.set_ylim(0, 1)
        panels.by_block(right, blocks, f"{title}: frozen tokens, 95 % intervals")
        _probes(right, one)
        right.set_ylabel(f"{METRICS[one.probes[0].metric]}, %")
    for ax in axes[-2:]:
        ax.set_xlabel("block")
    return figure


def _probes(ax: Axes, scores: TokenScores) -> None:
    for i, probe in enumerate(scores.probes):
        x = [row.block for row in probe.blocks]
        style, name = panels.line_style(i), f"{TOKENS[probe.tokens]}, {PROBES[probe.probe]}"
        low, high = ([100 * row.interval[side] for row in probe.blocks] for side in (0, 1))
        ax.fill_between(x, low, high, color=style["color"], alpha=0.16, linewidth=0)
        y = [100 * row.score for row in probe.blocks]
        ax.plot(x, y, **style, linewidth=1.2, marker=panels.marker(i), markersize=2.5, label=name)
    ax.axhline(100 * scores.chance, color=panels.GREY, linewidth=0.8, linestyle=":", label="most frequent class")
    ax.set_ylim(bottom=0)
    ax.legend(fontsize=6, frameon=False, ncols=2 if len(scores.probes) > 2 else 1)

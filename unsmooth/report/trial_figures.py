"""Figures of a trial for print."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from unsmooth.report import panels, trial_values
from unsmooth.report.figures import PAGE, new_figure, panelled
from unsmooth.report.figures import depth as depth_of_diagnoses
from unsmooth.report.formatting import unique_names
from unsmooth.report.trial_values import points, why_no_difference

if TYPE_CHECKING:
    from unsmooth.results.trial import Trial


def all_figures(trial: Trial) -> dict[str, Figure]:
    """Every figure that there is data for, by name."""
    makers: dict[str, Callable[[Trial], Figure | None]] = {
        "differences": differences, "curves": curves, "depth": depth, "cost": cost,
    }  # fmt: skip
    figures = {name: maker(trial) for name, maker in makers.items()}
    return {name: figure for name, figure in figures.items() if figure is not None}


def _names(trial: Trial) -> list[str]:
    return unique_names(arm.name for arm in trial.arms)


@rc_context(panels.STYLE)
def differences(trial: Trial) -> Figure:
    """Paired differences from the first arm with their intervals, as marks and as text.

    A mark is filled if the difference is shown, after the correction for several comparisons if there is one.
    """
    names, rows = _names(trial), len(trial.arms)
    figure, (ax,) = new_figure(1, 1, 0.34 * rows + 0.5)
    ax.axvline(0, color="0.45", linewidth=0.9, zorder=0)
    texts = []
    for i, arm in enumerate(trial.arms):
        difference, colour = points(arm.difference, trial_values.decimals(trial)), panels.line_style(i)["color"]
        texts.append("baseline" if i == 0 else why_no_difference(trial, arm))
        if difference is not None:
            texts[-1] = difference.text
            ends = [[difference.mean - difference.low], [difference.high - difference.mean]]
            face = colour if difference.decided else "white"
            ax.errorbar([difference.mean], [i], xerr=ends, fmt="D", color=colour, markerfacecolor=face, markersize=4.5,
                        capsize=2.5, linewidth=1.3)  # fmt: skip
            seeds = [v for v in difference.by_seed if v is not None]
            ax.plot(
                seeds,
                [i + 0.28] * len(seeds),
                "o",
                color=colour,
                markerfacecolor="none",
                markersize=2.8,
                markeredgewidth=0.7,
            )
    ax.set_ylim(rows - 0.5, -0.5)
    ax.set_yticks(
        range(rows), [panels.literal(textwrap.fill(name.replace("+", " +"), 40).replace(" +", "+")) for name in names]
    )
    base = panels.literal(textwrap.shorten(names[0], 40))
    ax.set_xlabel(f"difference in top-1 from {base}, points, {trial.confidence:.0%} interval")
    ax.grid(axis="x", color="0.9", linewidth=0.5)
    ax.set_axisbelow(True)
    right = ax.secondary_yaxis("right")
    right.set_yticks(range(rows), [panels.literal(textwrap.fill(text, 42)) for text in texts])
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)
    return figure


@rc_context(panels.STYLE)
def curves(trial: Trial) -> Figure | None:
    """Learning curves: means over seeds, and ranges if there are few arms."""
    charts = trial_values.learning(trial)
    if not charts:
        return None
    figure, axes = panelled(len(charts), 3, 2.0)
    for ax, chart in zip(axes, charts, strict=True):
        ax.set_title(chart.title + (f", {chart.unit}" if chart.unit else ""), loc="left", fontsize=7)
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        for i, arm in enumerate(chart.by):
            if arm is None:
                continue
            style = panels.line_style(i)
            if len(chart.by) <= trial_values.FEW:
                low, high = panels.floats(arm.low), panels.floats(arm.high)
                ax.fill_between(arm.epochs, low, high, color=style["color"], alpha=0.14, linewidth=0)
            mark = "o" if len(arm.epochs) == 1 else None
            ax.plot(arm.epochs, panels.floats(arm.mean), **style, linewidth=1.2, marker=mark, markersize=3)
            for run in arm.runs:
                if run.failed:
                    _stopped(ax, arm.epochs, run.values, style)
    panels.legend(figure, _names(trial), False)
    return figure


def _stopped(ax: Any, epochs: list[int], values: list[float | None], style: dict[str, Any]) -> None:
    """A run that failed: a thin line that ends with a cross."""
    known = [(e, v) for e, v in zip(epochs, values, strict=True) if v is not None]
    ax.plot(*np.array(known).T, **style, linewidth=0.7, alpha=0.7)
    ax.plot(*known[-1], "x", color=style["color"], markersize=4)


def depth(trial: Trial) -> Figure | None:
    """Vitals by depth of the final models."""
    diagnoses = trial_values.as_diagnoses(trial)
    few = len(diagnoses) <= trial_values.FEW
    return depth_of_diagnoses(diagnoses, _names(trial), few) if any(d and d.vitals for d in diagnoses) else None


@rc_context(panels.STYLE)
def cost(trial: Trial) -> Figure | None:
    """Accuracy with its range over seeds, against inference throughput with its quartiles."""
    data = trial_values.cost(trial)
    speeds = next((chart for chart in data.against if chart.key == "inference"), None)
    if speeds is None:
        return None
    figure, (ax,) = new_figure(1, 1, 2.6, PAGE * 0.62)
    handles = []
    for i, (x, y) in enumerate(zip(speeds.by, data.accuracy, strict=True)):
        if x is None or y is None:
            continue
        colour, mark = panels.line_style(i)["color"], panels.marker(i)
        across, up = (panels.floats([s.low, s.mean, s.high]) for s in (x, y))
        ax.errorbar(
            across[1:2], up[1:2], xerr=np.diff(across)[:, None], yerr=np.diff(up)[:, None], fmt=mark, color=colour,
            markersize=5, linewidth=0.8,
        )  # fmt: skip
        name = panels.literal(_names(trial)[i])
        handles.append(Line2D([], [], color=colour, marker=mark, linestyle="none", markersize=5, label=name))
    ax.set_xlabel(f"inference throughput, relative to {panels.literal(textwrap.shorten(_names(trial)[0], 40))}")
    ax.set_ylabel("top-1, %")
    ax.grid(color="0.9", linewidth=0.5)
    ax.set_axisbelow(True)
    panels.keys_below(figure, handles, 2)
    return figure

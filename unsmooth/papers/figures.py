"""ImageDataset of an experiment: the curves of each group, and published gains beside measured ones."""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unsmooth.report import panels
from unsmooth.report.figures import panelled
from unsmooth.report.measures import MEASURES
from unsmooth.report.reproduction_table import Row


@rc_context(panels.STYLE)
def curves_of(group: Row) -> Figure | None:
    """A panel for each curve of a group, a line for each arm."""
    labels = dict.fromkeys(label for row in group["rows"] for label in row["curves"])
    if not labels:
        return None
    figure, axes = panelled(len(labels), 3, 1.9)
    for ax, label in zip(axes, labels, strict=True):
        ax.set_title(panels.literal(label), loc="left")
        for i, row in enumerate(group["rows"]):
            curve = row["curves"].get(label)
            if curve is not None:
                _draw(ax, curve, row["name"], i)
                ax.set_xlabel(curve["by"])
    lines = axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=4, frameon=False, fontsize=6.5)
    return figure


def _draw(ax: Axes, curve: dict[str, Any], name: str, i: int) -> None:
    places = curve.get("at") or list(range(len(curve["mean"])))
    known = [(p, m, s) for p, m, s in zip(places, curve["mean"], curve["sd"], strict=True) if m is not None]
    at, mean, sd = ([point[k] for point in known] for k in range(3))
    (line,) = ax.plot(at, mean, label=panels.literal(name), **panels.look(i), marker=panels.marker(i), markersize=2)
    if all(s is not None for s in sd):
        low, high = [m - s for m, s in zip(mean, sd, strict=True)], [m + s for m, s in zip(mean, sd, strict=True)]
        ax.fill_between(at, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


@rc_context(panels.STYLE)
def gains_of(found: dict[str, Any]) -> Figure | None:
    """Gains of the first measure that has any: published as a ring, measured as a dot with its interval."""
    name = next((n for n in MEASURES if any(_has_gain(v, n) for v in _values(found))), None)
    if name is None:
        return None
    rows = [
        (f"{group['name']}: {row['name']}", row["values"][name])
        for group in found["groups"]
        for row in group["rows"]
        if _has_gain(row["values"], name)
    ]
    figure, (ax,) = panelled(1, 1, 0.25 + 0.17 * len(rows))
    figure.set_figwidth(5.4)
    for at, (_, value) in enumerate(rows):
        if value["published_gain"] is not None:
            ax.plot(value["published_gain"], at, "o", markerfacecolor="none", color="0.35", markersize=4.5)
        if value["gain"] is not None:
            ax.plot(value["gain"], at, ".", color=panels.COLOURS[0], markersize=6)
            if value["low"] is not None:
                ax.plot([value["low"], value["high"]], [at, at], color=panels.COLOURS[0], linewidth=1)
    none = 1.0 if MEASURES[name].how == "ratio" else 0.0
    ax.axvline(none, color="0.6", linewidth=0.6, linestyle=":")
    ax.set_yticks(range(len(rows)), [panels.literal(text) for text, _ in rows], fontsize=6)
    ax.invert_yaxis()
    ends = "quartiles" if MEASURES[name].how == "ratio" else "95 % interval"
    unit = "as a ratio to the first arm" if MEASURES[name].how == "ratio" else "to the first arm"
    ax.set_xlabel(panels.literal(f"{MEASURES[name].title}, {unit}; ring: published, dot: here, with {ends}"))
    return figure


def _values(found: dict[str, Any]) -> list[Row]:
    return [row["values"] for group in found["groups"] for row in group["rows"]]


def _has_gain(values: Row, name: str) -> bool:
    value = values.get(name)
    return value is not None and (value["gain"] is not None or value["published_gain"] is not None)

"""Figures of an experiment: the curves of each group, and published next to measured gains."""

from __future__ import annotations

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unsmooth.report import panels
from unsmooth.report.figures import panelled
from unsmooth.report.metrics import METRICS
from unsmooth.results.reproduction import ArmResult, GroupResult, MeasuredCurve, Reproduction


@rc_context(panels.STYLE)
def curve_figure(group: GroupResult) -> Figure | None:
    """One panel per curve of a group, one line per arm."""
    labels = dict.fromkeys(label for row in group.rows for label in row.curves)
    if not labels:
        return None
    figure, axes = panelled(len(labels), 3, 1.9)
    for ax, label in zip(axes, labels, strict=True):
        ax.set_title(panels.literal(label), loc="left")
        for i, row in enumerate(group.rows):
            curve = row.curves.get(label)
            if curve is not None:
                _draw_curve(ax, curve, row.name, i)
                ax.set_xlabel(curve.by)
    lines = {
        label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }  # an arm may be in one panel alone
    columns = 4 if len(labels) > 1 else 2  # a single panel is half as wide
    figure.legend(
        list(lines.values()), list(lines), loc="outside lower center", ncols=columns, frameon=False, fontsize=6.5
    )
    return figure


def _draw_curve(ax: Axes, curve: MeasuredCurve, name: str, index: int) -> None:
    positions = curve.at or list(range(len(curve.mean)))
    known = [(x, mean, sd) for x, mean, sd in zip(positions, curve.mean, curve.sd, strict=True) if mean is not None]
    xs, means = [x for x, _, _ in known], [mean for _, mean, _ in known]
    (line,) = ax.plot(
        xs, means, label=panels.literal(name), **panels.line_style(index), marker=panels.marker(index), markersize=2
    )
    low = [mean - sd for _, mean, sd in known if sd is not None]
    high = [mean + sd for _, mean, sd in known if sd is not None]
    if len(low) == len(known):
        ax.fill_between(xs, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


@rc_context(panels.STYLE)
def gain_figure(reproduction: Reproduction) -> Figure | None:
    """Gains of the first metric that has any: published as a ring, measured as a dot with its interval."""
    rows = [(group, row) for group in reproduction.groups for row in group.rows]
    name = next((name for name in METRICS if any(_has_gain(row, name) for _, row in rows)), None)
    if name is None:
        return None
    gains = [
        (f"{group.ran or group.name}: {row.name}", row.values[name]) for group, row in rows if _has_gain(row, name)
    ]
    figure, (ax,) = panelled(1, 1, 0.25 + 0.17 * len(gains))
    figure.set_figwidth(5.4)
    for y, (_, value) in enumerate(gains):
        if value.published_gain is not None:
            ax.plot(value.published_gain, y, "o", markerfacecolor="none", color="0.35", markersize=4.5)
        if value.gain is not None:
            ax.plot(value.gain, y, ".", color=panels.COLOURS[0], markersize=6)
            if value.low is not None and value.high is not None:
                ax.plot([value.low, value.high], [y, y], color=panels.COLOURS[0], linewidth=1)
    is_ratio = METRICS[name].comparison == "ratio"
    ax.axvline(1.0 if is_ratio else 0.0, color="0.6", linewidth=0.6, linestyle=":")
    ax.set_yticks(range(len(gains)), [panels.literal(text) for text, _ in gains], fontsize=6)
    ax.invert_yaxis()
    relation = "ratio to the first arm" if is_ratio else "difference to the first arm"
    ends = "quartiles" if is_ratio else "95 % interval"
    key = f"ring: published, dot: measured, with {ends}"
    ax.set_xlabel(panels.literal(f"{METRICS[name].title}, {relation}\n{key}"))
    return figure


def _has_gain(row: ArmResult, name: str) -> bool:
    value = row.values.get(name)
    return value is not None and (value.gain is not None or value.published_gain is not None)

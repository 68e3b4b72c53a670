"""One vital by block on an axis of matplotlib, with its limits and the blocks of findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.report import panels
from unsmooth.report.formatting import part_label, unique_names
from unsmooth.report.values import (
    column,
    depth_of,
    has_numbers,
    kind,
    limits_of,
    main_part,
    marked_blocks,
    merged,
    reference_series,
)

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.measured import Series


def plot_vital(
    diagnoses: Sequence[Diagnosis], names: Sequence[str], key: str, parts: str | Sequence[str] | None, ax: Axes | None
) -> Axes:
    """Draw parts of a vital of some diagnoses; a new figure of pyplot, which a notebook shows, if there is no axis."""
    vitals = merged(diagnoses)
    if key not in vitals:
        raise unknown(
            "vital", key, vitals, owner="this diagnosis" if len(diagnoses) == 1 else "none of these diagnoses"
        )
    lines = _lines(diagnoses, unique_names(names), key, parts)
    new = ax is None
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.subplots(layout="constrained")[1]
    vital, several = vitals[key], len({name for name, *_ in lines}) > 1
    drawn_parts = list(dict.fromkeys(part for _, part, _, _ in lines))
    for k, (name, part, diagnosis, series) in enumerate(lines):
        label = ", ".join([name] * several + [part_label(part)] * (len(drawn_parts) > 1)) or "mean over images"
        _draw(ax, k, label, series, (vital.low, vital.high) if part == vital.main else (None, None))
        random = column(reference_series(diagnosis, key, part))
        if has_numbers(random) and kind(part, series) == "line":
            first = "random initialisation" if k == 0 else None
            panels.random_line(ax, random, None, k if len(lines) > 1 else None, (None, None), first)
    for part in drawn_parts:
        for limit in limits_of(diagnoses, key, part):
            ax.plot(panels.floats(limit.values), "--", color="0.4", linewidth=1, label=f"limit: {limit.meaning}")
    marked = sorted({block for diagnosis in diagnoses for block in marked_blocks(diagnosis, key)})
    for i, block in enumerate(marked):
        ax.axvspan(block - 0.5, block + 0.5, color="0.5", alpha=0.13, linewidth=0, zorder=0,
                   label="blocks of a finding" if i == 0 else None)  # fmt: skip
    ax.set_title(panels.literal(vital.title))
    ax.set_xlabel("block")
    ax.set_xlim(-0.5, depth_of(diagnoses) - 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if new and ax.figure is not None:  # below the axis, where it hides nothing
        ax.figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    else:
        ax.legend(frameon=False, fontsize="small")
    return ax


def _lines(
    diagnoses: Sequence[Diagnosis], names: Sequence[str], key: str, parts: str | Sequence[str] | None
) -> list[tuple[str, str, Diagnosis, Series]]:
    """A line of the plot: name, part, diagnosis and values."""
    chosen = [parts] if isinstance(parts, str) else parts
    lines, known = [], dict[str, None]()
    for name, diagnosis in zip(names, diagnoses, strict=True):
        vital = diagnosis.vitals.get(key)
        own = main_part(vital)
        if vital is None:
            continue
        known |= {part: None for part, series in vital.parts.items() if kind(part, series) in ("line", "heads")}
        for part in chosen if chosen is not None else [own]:
            if part in known and part in vital.parts:
                lines.append((name, part, diagnosis, vital.parts[part]))
    if not known:
        raise UnsmoothError(
            f"{key} cannot be plotted by block: it has no value, or holds curves. Use another vital or part."
        )
    for part in chosen or ():
        if part not in known:
            raise unknown("part to plot", part, known, owner=key)
    return lines


def _draw(ax: Axes, k: int, label: str, series: Series, limits: panels.Limits) -> None:
    """A mean with its spread, or one thin line per head."""
    if all(spread is None or not isinstance(spread.mean, list) for spread in series):
        panels.line(ax, column(series), column(series, "sd"), k, limits, panels.literal(label))
        return
    heads = max(len(spread.mean) for spread in series if spread is not None and isinstance(spread.mean, list))
    for head in range(heads):
        values = [
            spread.mean[head]
            if spread is not None and isinstance(spread.mean, list) and head < len(spread.mean)
            else None
            for spread in series
        ]
        drawn = panels.floats([v if isinstance(v, int | float) else None for v in values])
        ax.plot(drawn, **panels.line_style(k), linewidth=0.7, alpha=0.7, label=label if head == 0 else None)

"""Figures of diagnoses for print, made with matplotlib's objects, without its global state."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from unsmooth.report import panels
from unsmooth.report.charts import bounds as bound_charts
from unsmooth.report.charts import grids, spectra
from unsmooth.report.charts import learned as learned_charts
from unsmooth.report.formatting import FAMILIES, letter, unique_names
from unsmooth.report.values import (
    Diagnoses,
    column,
    depth_of,
    has_numbers,
    main_part,
    merged,
    reference_series,
    vital_of,
)

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis

PAGE = 7.2  # inches: the width of two columns of a paper
SIMILARITY = ("token_cosine", "attention_cosine", "high_frequency_ratio")
SPECTRUM_NOTE = "x: frequency, from 0 to the highest; y: ‖Λ_i‖₂, three decades"


def vital_figures(diagnoses: Sequence[Diagnosis], names: list[str]) -> dict[str, Figure | None]:
    """Figures of vitals and learned parameters by name; None without data."""
    makers: dict[str, Callable[[Sequence[Diagnosis], list[str]], Figure | None]] = {
        "depth": depth, "similarity": similarity, "spectrum": spectrum, "first_head_spectrum": first_head_spectrum,
        "rank": rank, "bounds": bounds, "jacobian": jacobian, "learned": learned, "learned_by_head": learned_by_head,
    }  # fmt: skip
    return {name: maker(diagnoses, names) for name, maker in makers.items()}


def save(figure: Figure, format: str) -> bytes:
    """The bytes of a figure file. Equal data gives equal bytes."""
    file = io.BytesIO()
    dateless: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(format, {})
    with rc_context(panels.STYLE):
        figure.savefig(file, format=format, metadata=dateless)
    return file.getvalue()


def new_figure(rows: int, columns: int, height: float, width: float = PAGE) -> tuple[Figure, list[Axes]]:
    """A figure with a grid of panels, and its axes row by row."""
    figure = Figure(figsize=(width, height * rows + 0.35), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def panelled(count: int, columns: int, height: float = 1.45) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels; the rest of the last row stays empty."""
    columns = max(1, min(columns, count))
    width = PAGE if columns > 1 else PAGE / 2
    figure, axes = new_figure(-(-count // columns), columns, height, width)
    for ax in axes[count:]:
        figure.delaxes(ax)
    return figure, axes[:count]


@rc_context(panels.STYLE)
def depth(diagnoses: Diagnoses, names: list[str], spread: bool = True) -> Figure:
    """Every vital by depth, with its spread over images and its values at random initialisation."""
    order = list(FAMILIES)
    vitals = sorted(merged(diagnoses).items(), key=lambda item: (*order, item[1].family).index(item[1].family))
    keys = [key for key, vital in vitals if vital.family != "theory"]
    return _curves(diagnoses, names, keys, 4, spread=spread)


@rc_context(panels.STYLE)
def similarity(diagnoses: Diagnoses, names: list[str]) -> Figure | None:
    """Similarity of tokens and of maps by depth."""
    vitals = merged(diagnoses)
    figure = _curves(diagnoses, names, [key for key in SIMILARITY if key in vitals], 3, 1.9)
    return figure if any(ax.lines for ax in figure.axes) else None


def _curves(
    diagnoses: Diagnoses, names: list[str], keys: list[str], columns: int, height: float = 1.45, spread: bool = True
) -> Figure:
    vitals = merged(diagnoses)
    keys = [key for key in keys if any(main_part(vital_of(d, key)) is not None for d in diagnoses)]
    figure, axes = panelled(max(1, len(keys)), columns, height)
    if not keys:
        axes[0].text(0.5, 0.5, "no vital has a value for any block", ha="center", va="center", fontsize=7)
        axes[0].set_axis_off()
    has_reference = False
    for ax, key in zip(axes, keys, strict=False):
        panels.by_block(ax, depth_of(diagnoses), vitals[key].title)
        for i, diagnosis in enumerate(diagnoses):
            part = main_part(vital_of(diagnosis, key))
            if diagnosis is None or part is None:
                continue
            series = diagnosis.vitals[key].parts[part]
            limits = (vitals[key].low, vitals[key].high) if part == vitals[key].main else (None, None)
            panels.line(ax, column(series), column(series, "sd") if spread else None, i, limits)
            random = reference_series(diagnosis, key, part)
            if has_numbers(column(random)):
                sd = column(random, "sd") if spread else None
                panels.random_line(ax, column(random), sd, i if len(diagnoses) > 1 else None, limits)
                has_reference = True
    for ax in axes[-columns:]:
        ax.set_xlabel("block")
    panels.legend(figure, unique_names(names), has_reference)
    return figure


@rc_context(panels.STYLE)
def spectrum(diagnoses: Diagnoses, names: list[str]) -> Figure | None:
    """Spectra of attention maps: one row per block, one column per head."""
    spectra = _spectra(diagnoses)
    if spectra is None:
        return None
    by, blocks, heads, top = spectra
    figure, axes = new_figure(len(blocks), heads, 0.42, max(PAGE / 2, min(14.0, 1.2 * heads)))
    for row, b in enumerate(blocks):
        for h in range(heads):
            panels.spectrum(axes[row * heads + h], [panels.pick(m, b, h) for m in by], top)
        axes[row * heads].set_ylabel(f"block {b}", fontsize=6, rotation=0, ha="right", va="center")
    for h in range(heads):
        axes[h].set_title(f"head {h}", fontsize=6)
    panels.legend(figure, names, False, note=SPECTRUM_NOTE)
    return figure


@rc_context(panels.STYLE)
def first_head_spectrum(diagnoses: Diagnoses, names: list[str]) -> Figure | None:
    """Spectra of the first head, one panel per block."""
    spectra = _spectra(diagnoses)
    if spectra is None:
        return None
    by, blocks, _, top = spectra
    figure, axes = panelled(len(blocks), 3 if len(blocks) < 4 else 6, 1.6)
    for ax, b in zip(axes, blocks, strict=True):
        ax.set_title(f"block {b}", loc="left")
        ax.set_xlabel("frequency")
        for i, model in enumerate(by):
            curve = panels.pick(model, b, 0)
            if curve is not None:
                ax.plot(panels.floats(curve), **panels.line_style(i), linewidth=1.1)
        ax.set_yscale("log")
        ax.set_ylim(top * 1e-3, top * 1.3)
    axes[0].set_ylabel("‖Λ_i‖₂, first head")
    panels.legend(figure, names, False)
    return figure


def _spectra(diagnoses: Diagnoses) -> tuple[list[Any], list[int], int, float] | None:
    """Spectra by model, block and head, the blocks that have any, the number of heads and the largest value."""
    grid = next((g for g in grids(diagnoses) if g["key"] == "attention_spectrum"), None)
    if grid is None:
        return None
    models = [m for m in grid["by"] if m]
    blocks = [b for b in range(max(len(m) for m in models)) if any(b < len(m) and m[b] for m in models)]
    heads = max(len(b) for m in models for b in m if b)
    top = max(v for m in models for b in m if b for h in b for v in h if v)
    return grid["by"], blocks, heads, top or 1.0


@rc_context(panels.STYLE)
def rank(diagnoses: Diagnoses, names: list[str]) -> Figure | None:
    """Cumulative singular values of attention maps, mean over heads, one line per block."""
    grid = next((g for g in grids(diagnoses) if g["key"] == "equivalent_rank"), None)
    if grid is None:
        return None
    shown = [(name, m) for name, m in zip(names, grid["by"], strict=True) if m and any(m)]
    figure, axes = panelled(len(shown), 3, 2.3)
    for ax, (name, model) in zip(axes, shown, strict=True):
        panels.cumulative(figure, ax, [None if b is None else np.array(b, dtype=float) for b in model])
        ax.set_title(panels.literal(textwrap.fill(name, 44)), fontsize=6)
    return figure


@rc_context(panels.STYLE)
def bounds(diagnoses: Diagnoses, names: list[str]) -> Figure | None:
    """Bounds of theorems and the measured values."""
    charts = [chart for chart in bound_charts(diagnoses) if any(has_numbers(b["bound"]) for b in chart["by"])]
    if not charts:
        return None
    printed = {(key, part): i for key, v in merged(diagnoses).items() for i, part in enumerate(v.meaning)}
    charts.sort(key=lambda chart: printed.get((chart["key"], chart["name"]), 0))  # stable: vitals stay together
    figure, axes = panelled(len(charts), 4 if len(charts) == 4 else 3, 1.8)
    for ax, bound in zip(axes, charts, strict=True):
        panels.by_block(ax, depth_of(diagnoses), f"{bound['title']} {bound['name']}".strip())
        for i, values in enumerate(bound["by"]):
            panels.bound(ax, values["bound"], values["measured"], i)
        if bound["log"]:
            ax.set_yscale("log")
        ax.set_xlabel("block")
    panels.legend(figure, names, False, bound=True)
    return figure


@rc_context(panels.STYLE)
def jacobian(diagnoses: Diagnoses, names: list[str]) -> Figure | None:
    """Singular values of a Jacobian, with and without the skip."""
    charts = spectra(diagnoses)
    if not charts:
        return None
    figure, axes = panelled(len(charts), 3, 2.1)
    for ax, chart in zip(axes, charts, strict=True):
        ax.set_title(panels.literal(chart["title"]), loc="left")
        ax.set_yscale("log")
        ax.set_xlabel("share of singular values")
        for k, line in enumerate(chart["lines"]):
            label = f"{line['part']}, block {line['block']}"
            panels.singular(ax, line["values"], k, f"{letter(line['model'])}, {label}" if len(diagnoses) > 1 else label)
        ax.legend(frameon=False, fontsize=6)
    return figure


@rc_context(panels.STYLE)
def learned_by_head(diagnoses: Diagnoses, names: list[str]) -> Figure | None:
    """Parameters of remedies by block, one panel per head: its value, or the mean over its share of the channels."""
    lines: dict[str, dict[int, list[float | None]]] = {}  # by parameter and model, then by block
    for name, diagnosis in zip(names, diagnoses, strict=True):
        for row in diagnosis.learned if diagnosis is not None else ():
            if row.by_head and row.block is not None:
                lines.setdefault(f"{row.parameter}, {name}", {})[row.block] = row.by_head
    if not lines:
        return None
    figure, axes = panelled(max(len(heads) for line in lines.values() for heads in line.values()), 3, 1.5)
    for head, ax in enumerate(axes):
        panels.by_block(ax, depth_of(diagnoses), f"head {head}")
        ax.axhline(0, color="0.6", linewidth=0.6, linestyle=":")
        for k, line in enumerate(lines.values()):
            own = {block: heads[head] for block, heads in sorted(line.items()) if head < len(heads)}
            values = panels.floats(list(own.values()))
            ax.plot(list(own), values, **panels.line_style(k), linewidth=1.1, marker=panels.marker(k), markersize=2)
    for ax in axes[-3:]:
        ax.set_xlabel("block")
    panels.legend(figure, list(lines), False)
    return figure


@rc_context(panels.STYLE)
def learned(diagnoses: Diagnoses, names: list[str]) -> Figure | None:
    """Parameters of remedies by block."""
    charts = [c for c in learned_charts(diagnoses) if any(r["block"] is not None for r in c["rows"])]
    if not charts:
        return None
    figure, axes = panelled(len(charts), 3, 1.8)
    for ax, chart in zip(axes, charts, strict=True):
        panels.by_block(ax, depth_of(diagnoses), f"{chart['remedy']}: {chart['name']}")
        ax.axhline(0, color="0.6", linewidth=0.6, linestyle=":")
        for i in range(len(diagnoses)):
            panels.parameter(ax, [r for r in chart["rows"] if r["model"] == i and r["block"] is not None], i)
    panels.legend(figure, names, False)
    return figure

"""Figures for print, drawn with matplotlib's objects so that nothing global is touched."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from unsmooth.report import panels
from unsmooth.report.charts import bounds as bound_data
from unsmooth.report.charts import grids, spectra
from unsmooth.report.charts import learned as learned_data
from unsmooth.report.values import column, depth_of, has_numbers, main_part, merged, reference
from unsmooth.report.words import FAMILIES, labels, letter

Diagnoses = list[dict[str, Any]]
PAGE = 7.2  # inches: the width of two columns of a paper
ALIKE = ("token_cosine", "attention_cosine", "high_frequency_ratio")


def all_figures(diagnoses: Diagnoses) -> dict[str, Figure]:
    """Every figure that the data has."""
    makers: dict[str, Callable[[Diagnoses], Figure | None]] = {
        "depth": depth, "similarity": similarity, "spectrum": spectrum, "rank": rank, "bounds": bounds,
        "jacobian": jacobian, "maps": maps, "learned": learned,
    }  # fmt: skip
    made = {name: maker(diagnoses) for name, maker in makers.items()}
    return {name: figure for name, figure in made.items() if figure is not None and figure.axes}


def save(figure: Figure, format: str) -> bytes:
    """A figure as the bytes of a file; equal data gives equal bytes."""
    file = io.BytesIO()
    dateless: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(format, {})
    with rc_context({"svg.hashsalt": "unsmooth", "pdf.fonttype": 42}):
        figure.savefig(file, format=format, dpi=200, metadata=dateless)
    return file.getvalue()


def new_figure(rows: int, columns: int, height: float, width: float = PAGE) -> tuple[Figure, list[Axes]]:
    """A figure of panels that share a style, and its axes from left to right, row by row."""
    figure = Figure(figsize=(width, height * rows + 0.35), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def panelled(count: int, columns: int, height: float = 1.45) -> tuple[Figure, list[Axes]]:
    """As many panels as asked for; those left over in the last row are taken away."""
    columns = max(1, min(columns, count))
    width = PAGE if columns > 1 else PAGE / 2
    figure, axes = new_figure(-(-count // columns), columns, height, width)
    for ax in axes[count:]:
        figure.delaxes(ax)
    return figure, axes[:count]


@rc_context(panels.STYLE)
def depth(diagnoses: Diagnoses, spread: bool = True) -> Figure:
    """Every vital by depth, with its spread over images and the same architecture at random start."""
    order = list(FAMILIES)
    known = sorted(merged(diagnoses).items(), key=lambda item: (*order, item[1]["family"]).index(item[1]["family"]))
    return _curves(diagnoses, [key for key, facts in known if facts["family"] != "theory"], 4, spread=spread)


@rc_context(panels.STYLE)
def similarity(diagnoses: Diagnoses) -> Figure | None:
    """Similarity of tokens and of maps by depth."""
    known = merged(diagnoses)
    figure = _curves(diagnoses, [key for key in ALIKE if key in known], 3, 1.9)
    return figure if any(ax.lines for ax in figure.axes) else None


def _curves(diagnoses: Diagnoses, keys: list[str], columns: int, height: float = 1.45, spread: bool = True) -> Figure:
    known = merged(diagnoses)
    keys = [k for k in keys if any(k in d["vitals"] and main_part(d["vitals"][k]) is not None for d in diagnoses)]
    figure, axes = panelled(max(1, len(keys)), columns, height)
    if not keys:
        axes[0].text(0.5, 0.5, "no vital has a number for any block", ha="center", va="center", fontsize=7)
        axes[0].set_axis_off()
    started = False
    for ax, key in zip(axes, keys, strict=False):
        panels.by_block(ax, depth_of(diagnoses), known[key]["title"])
        for i, d in enumerate(diagnoses):
            part = main_part(d["vitals"][key]) if key in d["vitals"] else None
            if part is None:
                continue
            series = d["vitals"][key]["parts"][part]
            limits = (known[key]["low"], known[key]["high"]) if part == known[key]["main"] else (None, None)
            panels.line(ax, column(series), column(series, "sd") if spread else None, i, limits)
            start = reference(d, key, part)
            if has_numbers(column(start)):
                panels.start(
                    ax,
                    column(start),
                    column(start, "sd") if spread else None,
                    i if len(diagnoses) > 1 else None,
                    limits,
                )
                started = True
    for ax in axes[-columns:]:
        ax.set_xlabel("block")
    panels.legend(figure, labels(diagnoses), started)
    return figure


@rc_context(panels.STYLE)
def spectrum(diagnoses: Diagnoses) -> Figure | None:
    """Spectra of attention maps: heads × blocks."""
    grid = next((g for g in grids(diagnoses) if g["key"] == "attention_spectrum"), None)
    if grid is None:
        return None
    blocks = max(len(m) for m in grid["by"] if m)
    heads = max(len(b) for m in grid["by"] if m for b in m if b)
    figure, axes = new_figure(heads, blocks, 0.5, max(PAGE / 2, min(14.0, 0.6 * blocks)))
    top = max(v for m in grid["by"] if m for b in m if b for h in b for v in h if v)
    for h in range(heads):
        for b in range(blocks):
            panels.spectrum(axes[h * blocks + b], [panels.pick(m, b, h) for m in grid["by"]], top or 1.0)
        axes[h * blocks].set_ylabel(f"head {h}", fontsize=6)
    for b in range(blocks):
        axes[b].set_title(f"block {b}", fontsize=6)
    note = "along: frequency, 0 to the highest; up: ‖Λ‖₂, three decades"
    panels.legend(figure, labels(diagnoses), False, note=note)
    return figure


@rc_context(panels.STYLE)
def rank(diagnoses: Diagnoses) -> Figure | None:
    """Cumulative singular values of attention maps, mean over heads, one line a block."""
    grid = next((g for g in grids(diagnoses) if g["key"] == "equivalent_rank"), None)
    if grid is None:
        return None
    shown = [(name, m) for name, m in zip(labels(diagnoses), grid["by"], strict=True) if m and any(m)]
    figure, axes = panelled(len(shown), 3, 2.3)
    for ax, (name, model) in zip(axes, shown, strict=True):
        panels.cumulative(figure, ax, [None if b is None else np.array(b, dtype=float) for b in model])
        ax.set_title(panels.literal(textwrap.fill(name, 44)), fontsize=6)
    return figure


@rc_context(panels.STYLE)
def bounds(diagnoses: Diagnoses) -> Figure | None:
    """What theorems allow, against what was measured."""
    found = [chart for chart in bound_data(diagnoses) if any(has_numbers(b["bound"]) for b in chart["by"])]
    if not found:
        return None
    figure, axes = panelled(len(found), 3, 1.8)
    for ax, bound in zip(axes, found, strict=True):
        panels.by_block(ax, depth_of(diagnoses), f"{bound['title']} {bound['name']}".strip())
        for i, values in enumerate(bound["by"]):
            panels.bound(ax, values["bound"], values["measured"], i)
        if bound["log"]:
            ax.set_yscale("log")
    panels.legend(figure, labels(diagnoses), False, bound=True)
    return figure


@rc_context(panels.STYLE)
def jacobian(diagnoses: Diagnoses) -> Figure | None:
    """Singular values of a Jacobian, with and without the skip."""
    found = spectra(diagnoses)
    if not found:
        return None
    figure, axes = panelled(len(found), 3, 2.1)
    for ax, chart in zip(axes, found, strict=True):
        ax.set_title(panels.literal(chart["title"]), loc="left")
        ax.set_yscale("log")
        ax.set_xlabel("share of singular values")
        for k, one in enumerate(chart["lines"]):
            label = f"{one['part']}, block {one['block']}"
            panels.singular(ax, one["values"], k, f"{letter(one['model'])}, {label}" if len(diagnoses) > 1 else label)
        ax.legend(frameon=False, fontsize=6)
    return figure


@rc_context(panels.STYLE)
def maps(diagnoses: Diagnoses) -> Figure | None:
    """Attention and token similarity of the middle patch of the first sample image, block by block."""
    rows = []
    for i, d in enumerate(diagnoses):
        sample = next((s for s in d.get("samples") or [] if s["blocks"]), None)
        for kind in ("maps", "similarity"):
            if sample is not None and any(kind in entry for entry in sample["blocks"].values()):
                rows.append((letter(i), kind, sample))
    if not rows:
        return None
    chosen = [panels.spread_out(sorted(map(int, sample["blocks"])), 8) for _, _, sample in rows]
    columns = 1 + max(len(blocks) for blocks in chosen)
    figure, axes = new_figure(len(rows), columns, PAGE / columns + 0.12)
    for at, ((model, kind, sample), blocks) in enumerate(zip(rows, chosen, strict=True)):
        line = axes[at * columns : (at + 1) * columns]
        panels.picture(line[0], sample)
        line[0].set_ylabel(f"{model}  {'attention' if kind == 'maps' else 'similarity'}", fontsize=6)
        for ax, block in zip(line[1:], blocks, strict=False):
            panels.sample_map(ax, sample, block, kind)
        for ax in line[1 + len(blocks) :]:
            figure.delaxes(ax)
    names = (f"{letter(i)}  {name}" for i, name in enumerate(labels(diagnoses)))
    figure.supxlabel(panels.literal("\n".join(names)), fontsize=6.5)
    return figure


@rc_context(panels.STYLE)
def learned(diagnoses: Diagnoses) -> Figure | None:
    """Remedy parameters by block."""
    found = [c for c in learned_data(diagnoses) if any(r["block"] is not None for r in c["rows"])]
    if not found:
        return None
    figure, axes = panelled(len(found), 3, 1.8)
    for ax, chart in zip(axes, found, strict=True):
        panels.by_block(ax, depth_of(diagnoses), f"{chart['remedy']}: {chart['name']}")
        ax.axhline(0, color="0.6", linewidth=0.6, linestyle=":")
        for i in range(len(diagnoses)):
            panels.parameter(ax, [r for r in chart["rows"] if r["model"] == i and r["block"] is not None], i)
    panels.legend(figure, labels(diagnoses), False)
    return figure

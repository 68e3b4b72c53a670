"""The contents of one panel of a figure for print."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps, rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from unsmooth.results.sample import Sample, SampleBlock, Trajectories

COLOURS = ("#0072b2", "#d55e00", "#00875f", "#b0528a", "#a87400", "#55606b")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (8, 2)), (0, (1, 1.5)))
GREY = "#7d858e"
STYLE: Any = rc_params_from_file(
    Path(__file__).parent / "static" / "figures.mplstyle", fail_on_error=True, use_default_template=False
)
MARKERS = ("o", "s", "D", "^", "P", "X")
Values = Sequence[float | None]
Limits = tuple[float | None, float | None]


def line_style(i: int) -> dict[str, Any]:
    """Colour and dash of a model. There are six of each; the seventh model has the first colour with another dash."""
    return {"color": COLOURS[i % 6], "linestyle": DASHES[(i + i // 6) % 6]}


def marker(i: int) -> str:
    return MARKERS[(i + i // 6) % 6]


def literal(text: str) -> str:
    """Text without formulas: dollar signs are escaped."""
    return text.replace("$", r"\$")


def floats(values: Values) -> np.ndarray[Any, np.dtype[np.float64]]:
    """An array with NaN for None, which matplotlib leaves out."""
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def by_block(ax: Axes, blocks: int, title: str) -> None:
    ax.set_title(literal(title), loc="left", fontsize=7)
    ax.set_xlim(-0.5, blocks - 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def around(mean: Values, sd: Values, limits: Limits) -> tuple[Any, Any]:
    """One standard deviation to both sides, within the range of the vital."""
    low, high = (-np.inf if limits[0] is None else limits[0]), (np.inf if limits[1] is None else limits[1])
    y, s = floats(mean), floats(sd)
    return np.clip(y - s, low, high), np.clip(y + s, low, high)


def line(ax: Axes, mean: Values, sd: Values | None, i: int, limits: Limits, label: str | None = None) -> None:
    """A mean by block and its spread."""
    x, y = np.arange(len(mean)), floats(mean)
    if sd is not None:
        ax.fill_between(x, *around(mean, sd, limits), color=line_style(i)["color"], alpha=0.16, linewidth=0)
    ax.plot(x, y, **line_style(i), linewidth=1.2, marker="o", markersize=2, label=label)


def random_line(
    ax: Axes, mean: Values, sd: Values | None, i: int | None, limits: Limits, label: str | None = None
) -> None:
    """The same architecture at random initialisation."""
    x, y = np.arange(len(mean)), floats(mean)
    colour = GREY if i is None else COLOURS[i % len(COLOURS)]
    if sd is not None:
        tone = 0.18 if i is None else 0.06
        ax.fill_between(x, *around(mean, sd, limits), color=colour, alpha=tone, linewidth=0, zorder=0)
    ax.plot(x, y, color=colour, linewidth=0.8, linestyle=":", zorder=1, label=label)


def bound(ax: Axes, allowed: Values, measured: Values, i: int) -> None:
    colour = COLOURS[i % len(COLOURS)]
    ax.plot(np.arange(len(allowed)), floats(allowed), color=colour, linewidth=0.9, linestyle="--")
    ax.plot(np.arange(len(measured)), floats(measured), color=colour, linewidth=1.3, marker="o", markersize=2)


def singular(ax: Axes, values: Values, k: int, label: str) -> None:
    """Singular values in descending order, without zeros."""
    y = floats(values)
    y[y <= 0] = np.nan
    ax.plot(np.arange(1, len(y) + 1) / len(y), y, label=literal(label), linewidth=1.1, **line_style(k))


def legend(figure: Figure, names: list[str], reference: bool, bound: bool = False, note: str | None = None) -> None:
    """A legend below the figure: the models, and the meaning of dotted and dashed lines."""
    handles = [Line2D([], [], **line_style(i), linewidth=1.2, label=literal(name)) for i, name in enumerate(names)]
    if reference:
        handles.append(Line2D([], [], color=GREY, linestyle=":", linewidth=0.9, label="random initialisation"))
    if bound:
        handles.append(Line2D([], [], color="0.3", linestyle="--", linewidth=0.9, label="bound"))
        handles.append(Line2D([], [], color="0.3", linewidth=1.3, label="measured"))
    keys_below(figure, handles, 3, note)


def keys_below(figure: Figure, handles: list[Line2D], columns: int, note: str | None = None) -> None:
    """A legend below the figure, with one line per entry if names are long."""
    if max(len(str(h.get_label())) for h in handles) > 40:
        columns = 1
    lines = -(-len(handles) // columns)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.15 * max(0, lines - 2))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=6.5, title=note)


def pick(model: Any, block: int, head: int) -> Values | None:
    """A curve, or None if this model has no such block or head."""
    if not model or block >= len(model) or not model[block] or head >= len(model[block]):
        return None
    curve: Values = model[block][head]
    return curve


def spectrum(ax: Axes, curves: list[Values | None], top: float) -> None:
    ax.set_yscale("log")
    ax.set_ylim(top * 1e-3, top * 1.3)
    ax.set_xlim(-0.02, 1.02)
    ax.tick_params(which="both", left=False, bottom=False, labelleft=False, labelbottom=False)
    for i, curve in enumerate(curves):
        if curve is not None:
            y = np.maximum(floats(curve), top * 1e-3)
            ax.plot(np.linspace(0, 1, len(y)), y, color=COLOURS[i % 6], linewidth=0.6)
    if not any(curve is not None for curve in curves):
        ax.set_axis_off()


def cumulative(figure: Figure, ax: Axes, blocks: list[Any]) -> None:
    tones = colormaps["viridis"]
    scale = Normalize(0, max(1, len(blocks) - 1))
    for b, heads in enumerate(blocks):
        if heads is not None and heads.size:
            y = np.nanmean(heads, axis=0)
            ax.plot(np.arange(1, len(y) + 1) / len(y), y, color=tones(scale(b)), linewidth=0.9)
    ax.axhline(0.9, color=GREY, linewidth=0.7, linestyle=":")
    ax.set_xlabel("share of singular values")
    ax.set_ylabel("f(r), mean over heads")
    ax.set_ylim(0, 1.02)
    bar = figure.colorbar(ScalarMappable(scale, tones), ax=ax, label="block", pad=0.02)
    bar.outline.set_visible(False)


def spread_out(items: list[int], most: int) -> list[int]:
    """At most `most` of the items, including the first and the last one."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def picture(ax: Axes, sample: Sample) -> None:
    """The image itself, if it can be read."""
    ax.set_xticks([])
    ax.set_yticks([])
    pixels = _pixels(sample)
    if pixels is not None:
        ax.imshow(pixels)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _pixels(sample: Sample) -> Any:
    uri = sample.picture
    if not uri.startswith("data:image/"):
        return None
    try:
        kind = uri.removeprefix("data:image/").split(";")[0]
        return imread(io.BytesIO(base64.b64decode(uri.split(",", 1)[1])), format=kind)
    except (ValueError, OSError, IndexError, SyntaxError, binascii.Error):
        return None


def sample_map(ax: Axes, block: int, *, sample: Sample, kind: str) -> None:
    """The map of the query nearest to the middle, mean over heads, with a mark at the query."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_title(f"block {block}", fontsize=6)
    entry = sample.blocks[block]
    encoded = getattr(entry, kind)
    if encoded is None:
        ax.set_axis_off()
        return
    h, w = entry.grid
    queries = np.array(entry.queries)
    q = int(np.abs(queries - np.array([h, w]) / 2).sum(axis=1).argmin())
    heads = entry.heads if kind == "maps" else 1
    maps = np.frombuffer(base64.b64decode(encoded), dtype=np.uint8).reshape(heads or 1, len(queries), h, w)
    ax.imshow(maps[:, q].mean(axis=0), cmap="inferno", vmin=0, vmax=255 if kind == "similarity" else None)
    row, column = queries[q]
    ax.plot([column], [row], marker="s", markersize=3, markerfacecolor="none", color="white", markeredgewidth=0.8)


def token_picture(ax: Axes, block: int, *, sample: Sample, kind: str) -> None:
    """A picture of all patches, with the number that belongs to it."""
    entry = sample.pictures[block]
    h, w = entry.grid
    values = np.frombuffer(base64.b64decode(getattr(entry, kind)), dtype=np.uint8)
    if kind.startswith("pca"):
        ax.imshow(values.reshape(h, w, 3), interpolation="nearest")
    else:
        ax.imshow(values.reshape(-1, h, w).mean(axis=0), cmap="inferno", vmin=0, interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_title(f"block {block}", fontsize=6)
    notes = {
        "pca": (entry.pca_share, "{:.0%}"), "pca_own": (entry.pca_own_share, "{:.0%}"),
        "norms": (entry.largest_norm, "{:.3g}"), "rollout": (entry.rollout_peak, "{:.3g} ×"),
    }  # fmt: skip
    number, form = notes.get(kind, (None, ""))
    if number is not None:
        ax.set_xlabel(form.format(number), fontsize=5.5)


def paths(ax: Axes, trajectories: Trajectories) -> None:
    """A line per patch, in the colour of its place in the image, and a dot at the last block."""
    for (y, x), path in zip(trajectories.patches, trajectories.points, strict=True):
        dy, dx = y - 0.5, x - 0.5
        hue = (math.atan2(dy, dx) / (2 * math.pi) + 0.5) % 1
        colour = hsv_to_rgb((hue, 0.8 * min(1.0, 2 * math.hypot(dy, dx)), 0.75))
        points = np.array(path)
        ax.plot(*points.T, color=colour, linewidth=0.6, alpha=0.8)
        ax.plot(*points[-1], "o", color=colour, markersize=2)
    ax.set_xlabel(f"component 1, {trajectories.shares[0]:.0%} of the variance")
    ax.set_ylabel(f"component 2, {trajectories.shares[1]:.0%}")


def whole_map(ax: Axes, entry: SampleBlock | None) -> None:
    """The pooled map of the first head, queries × keys."""
    ax.set_xticks([])
    ax.set_yticks([])
    if entry is None or entry.first_head is None:
        ax.set_axis_off()
        return
    pixels = np.frombuffer(base64.b64decode(entry.first_head), dtype=np.uint8)
    side = math.isqrt(len(pixels))
    ax.imshow(pixels.reshape(side, side), cmap="viridis", vmin=0, vmax=255)


def parameter(ax: Axes, rows: list[Any], i: int) -> None:
    """A learned parameter: dots for few values, bands of quantiles for many, and a line for the mean."""
    colour = COLOURS[i % len(COLOURS)]
    rows = sorted(rows, key=lambda r: r["block"])
    if not rows:
        return
    x = [r["block"] for r in rows]
    if any(r["quantiles"] for r in rows):
        for q, alpha in ((0.0, 0.1), (0.05, 0.16), (0.25, 0.26)):
            low, high = (floats([_level(r["values"], level) for r in rows]) for level in (q, 1 - q))
            ax.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0)
    else:
        for r in rows:
            ax.plot([r["block"]] * len(r["values"]), floats(r["values"]), ".", color=colour, alpha=0.6, markersize=4)
    ax.plot(x, floats([r["mean"] for r in rows]), **line_style(i), linewidth=1.2)


def _level(values: list[float | None], q: float) -> float | None:
    return values[round(q * (len(values) - 1))] if values else None

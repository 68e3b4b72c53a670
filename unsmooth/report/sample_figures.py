"""Figures of sample images for print: maps of a patch, and pictures of all patches, block by block."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unsmooth.report import panels
from unsmooth.report.figures import PAGE, new_figure, panelled
from unsmooth.report.formatting import letter
from unsmooth.report.pictures import PICTURES

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.sample import Sample

COLUMNS = 8  # blocks
TEXT = 0.4  # inches for the block above a picture and the number below it
# Names of pictures by figure, with the label of their row.
ROWS = {
    "pca": {"pca": "one basis", "pca_own": "own basis"},
    "norms": {"norms": "norms"},
    "class_attention": {"class_attention": "class token"},
    "rollout": {"rollout": "rollout"},
}
Draw = Callable[[Axes, int], None]
Row = tuple[str, "Sample", list[int], Draw]  # label, sample, blocks, and what draws one of them


def sample_figures(diagnoses: Sequence[Diagnosis], names: list[str]) -> dict[str, Figure | None]:
    """Figures of the first sample image by name; None without data."""
    pictures = {name: _strips(_picture_rows(diagnoses, kinds), names, TEXT) for name, kinds in ROWS.items()}
    return {
        "maps": _strips(_map_rows(diagnoses), names), "first_head_maps": first_head_maps(diagnoses, names),
        **pictures, "trajectories": trajectories(diagnoses, names),
    }  # fmt: skip


def _map_rows(diagnoses: Sequence[Diagnosis]) -> list[Row]:
    """Attention and token similarity of the middle patch of the first sample image."""
    rows: list[Row] = []
    for i, diagnosis in enumerate(diagnoses):
        sample = next((s for s in diagnosis.samples if s.blocks), None)
        for kind, label in (("maps", "attention"), ("similarity", "similarity")):
            if sample is not None and any(getattr(entry, kind) for entry in sample.blocks.values()):
                draw = partial(panels.sample_map, sample=sample, kind=kind)
                rows.append((f"{letter(i)}  {label}", sample, sorted(sample.blocks), draw))
    return rows


def _picture_rows(diagnoses: Sequence[Diagnosis], kinds: dict[str, str]) -> list[Row]:
    """Pictures of all patches of the first sample image."""
    rows: list[Row] = []
    for i, diagnosis in enumerate(diagnoses):
        sample = next((s for s in diagnosis.samples if s.pictures), None)
        if sample is None:
            continue
        for kind, label in kinds.items():
            blocks = sorted(b for b, entry in sample.pictures.items() if getattr(entry, kind))
            if blocks:
                draw = partial(panels.token_picture, sample=sample, kind=kind)
                rows.append((f"{letter(i)}  {label}", sample, blocks, draw))
    return rows


@rc_context(panels.STYLE)
def _strips(rows: list[Row], names: list[str], text: float = 0.12) -> Figure | None:
    """One row of pictures per model and kind: the image, then some of its blocks. `text`: inches above and below."""
    if not rows:
        return None
    shown = [panels.spread_out(blocks, COLUMNS) for _, _, blocks, _ in rows]
    columns = 1 + max(len(blocks) for blocks in shown)
    figure, axes = new_figure(len(rows), columns, PAGE / columns + text)
    for row, ((label, sample, _, draw), blocks) in enumerate(zip(rows, shown, strict=True)):
        line = axes[row * columns : (row + 1) * columns]
        panels.picture(line[0], sample)
        line[0].set_ylabel(label, fontsize=6)
        for ax, block in zip(line[1:], blocks, strict=False):
            draw(ax, block)
        for ax in line[1 + len(blocks) :]:
            figure.delaxes(ax)
    _name_models(figure, names)
    return figure


def _name_models(figure: Figure, names: list[str]) -> None:
    figure.supxlabel(panels.literal("\n".join(f"{letter(i)}  {name}" for i, name in enumerate(names))), fontsize=6.5)


@rc_context(panels.STYLE)
def trajectories(diagnoses: Sequence[Diagnosis], names: list[str]) -> Figure | None:
    """Paths of tokens through the blocks, one panel per model."""
    samples = [(i, next((s for s in d.samples if s.trajectories), None)) for i, d in enumerate(diagnoses)]
    shown = [
        (i, sample.trajectories) for i, sample in samples if sample is not None and sample.trajectories is not None
    ]
    if not shown:
        return None
    figure, axes = panelled(len(shown), 3, 2.4)
    for ax, (i, paths) in zip(axes, shown, strict=True):
        panels.paths(ax, paths)
        ax.set_title(f"{letter(i)}  {PICTURES['trajectories'].title}", loc="left", fontsize=7)
    _name_models(figure, names)
    return figure


@rc_context(panels.STYLE)
def first_head_maps(diagnoses: Sequence[Diagnosis], names: list[str]) -> Figure | None:
    """Whole maps of the first head after max pooling: one row per model, one column per block."""
    samples = [next((s for s in d.samples if any(e.first_head for e in s.blocks.values())), None) for d in diagnoses]
    rows = [(name, sample) for name, sample in zip(names, samples, strict=True) if sample is not None]
    if not rows:
        return None
    blocks = sorted({block for _, sample in rows for block, entry in sample.blocks.items() if entry.first_head})
    width = max(PAGE, 0.6 * len(blocks))
    figure, axes = new_figure(len(rows), len(blocks), 0.95 * width / len(blocks), width)
    for row, (name, sample) in enumerate(rows):
        for column_index, block in enumerate(blocks):
            ax = axes[row * len(blocks) + column_index]
            panels.whole_map(ax, sample.blocks.get(block))
            if row == 0:
                ax.set_title(f"block {block}", fontsize=6)
        if len(rows) > 1:
            axes[row * len(blocks)].set_ylabel(panels.literal(textwrap.fill(name, 20)), fontsize=6)
    return figure

"""A trial as a table for a terminal."""

from __future__ import annotations

import io
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table


def as_rich(trial: dict[str, Any]) -> list[RenderableType]:
    """The table of arms, and the verdict."""
    first = trial["arms"][0]["name"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("arm", overflow="fold")
    table.add_column("top-1 %", justify="right", no_wrap=True)
    table.add_column(f"points to {escape(first)}", no_wrap=True)
    for heading in ("params", "MFLOPs", "infer", "train"):
        table.add_column(heading, justify="right", no_wrap=True)
    for arm in trial["arms"]:
        table.add_row(*_row(arm))
    facts, budget = trial["data"], trial["recipe"]
    seeds = len(trial["seeds"])
    about = (
        f"{escape(str(facts['name']))}: {facts['train']:,} training and {facts['val']:,} validation images, "
        f"{budget['epochs']} epochs, {seeds} seed{'s' if seeds > 1 else ''}. top-1 of the last epoch, mean ± standard "
        f"deviation over seeds; differences are paired by seed and image, {100 * trial['confidence']:g} % intervals; "
        "infer and train: images per second, as a ratio to the first arm."
    )
    return [table, f"[dim]{about}[/dim]\n", f"[bold]{escape(trial['verdict']['text'])}[/bold]"]


def as_text(trial: dict[str, Any], width: int = 110) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, no_color=True, highlight=False)
    for piece in as_rich(trial):
        console.print(piece)
    return file.getvalue()


def _row(arm: dict[str, Any]) -> list[str]:
    top1, d = arm["top1"], arm["difference"]
    accuracy = "failed" if top1["mean"] is None else f"{100 * top1['mean']:.1f}"
    if top1["sd"] is not None:
        accuracy += f" ± {100 * top1['sd']:.1f}"
    return [
        escape(arm["name"]),
        accuracy,
        "" if d is None else escape(d["text"].replace(" points", "").replace(" (", "\n(")),
        "" if arm["parameters"] is None else _size(arm["parameters"]),
        "" if arm["flops"] is None else f"{arm['flops'] / 1e6:,.1f}",
        *("" if arm[kind] is None else f"{arm[kind]['ratio']['median']:.2f}" for kind in ("inference", "training")),
    ]


def _size(count: int) -> str:
    return f"{count / 1e6:.2f} M" if count >= 1e6 else f"{count / 1e3:.1f} k"

"""A trial as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from unsmooth.report.terminal import plain_text
from unsmooth.report.trial_design import design, interval_level, untuned_fields

if TYPE_CHECKING:
    from unsmooth.results.trial import Arm, Speed, Trial


def as_text(trial: Trial, width: int = 100) -> str:
    return plain_text(as_rich(trial), width) + "\n"


def as_rich(trial: Trial) -> list[RenderableType]:
    """The table of arms, a note and the verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("arm", overflow="fold")
    table.add_column("top-1 %", justify="right", no_wrap=True)
    table.add_column("difference, points", no_wrap=True)
    for heading in ("params", "MFLOPs", "infer", "train"):
        table.add_column(heading, justify="right", no_wrap=True)
    for arm in trial.arms:
        table.add_row(*_row(arm))
    data, seeds = trial.data, len(trial.seeds)
    corrected = f"; * after Holm's correction for {trial.comparisons} comparisons" if trial.comparisons else ""
    note = (
        f"{escape(data.name)}: {data.train:,} training and {data.val:,} validation images, {trial.recipe['epochs']} "
        f"epochs, {seeds} seed{'s' if seeds > 1 else ''}. top-1: after the last epoch, mean ± standard deviation over "
        f"seeds. difference: from {escape(trial.arms[0].name)}, paired by seed and image, with a "
        f"{interval_level(trial)} interval{corrected}. infer, train: throughput as a ratio to the first arm."
    )
    for arm in trial.arms:
        if own := untuned_fields(arm):
            text = ", ".join(f"{name} = {value}" for name, value in own.items())
            note += f" Not on the same budget: {escape(arm.name)} alone has {escape(text)}."
    notes = [f"[dim]{escape(text)}[/dim]\n" for text in design(trial)]
    return [table, f"[dim]{note}[/dim]\n", *notes, f"[bold]{escape(trial.verdict.text)}[/bold]"]


def _row(arm: Arm) -> list[str]:
    accuracy = "failed" if arm.top1.mean is None else f"{100 * arm.top1.mean:.1f}"
    if arm.top1.sd is not None:
        accuracy += f" ± {100 * arm.top1.sd:.1f}"
    difference = "" if arm.difference is None else arm.difference.text
    if arm.difference is not None and arm.difference.survives:
        difference = difference.replace(" points (", " * (", 1)
    return [
        escape(arm.name),
        accuracy,
        escape(difference.replace(" points", "").replace(" (", "\n(")),
        "" if arm.parameters is None else _size(arm.parameters),
        "" if arm.flops is None else f"{arm.flops / 1e6:,.1f}",
        _ratio(arm.inference),
        _ratio(arm.training),
    ]


def _ratio(speed: Speed | None) -> str:
    return "" if speed is None else f"{speed.ratio.median:.2f}"


def _size(count: int) -> str:
    return f"{count / 1e6:.2f} M" if count >= 1e6 else f"{count / 1e3:.1f} k"

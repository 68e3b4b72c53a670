"""A trial as a table for the terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from unsmooth.report.formatting import letter
from unsmooth.report.terminal import WideTable, plain_text
from unsmooth.report.trial_design import design, interval_level, untuned_fields
from unsmooth.report.trial_tokens import title_of, token_columns, token_note
from unsmooth.report.trial_values import decimals, signed_points

if TYPE_CHECKING:
    from unsmooth.results.trial import Arm, Difference, SeedSpread, Speed, Trial

NAME = 19  # columns for names, so that the table has 80; longer ones are listed above it, and letters stand for them


def as_text(trial: Trial, width: int = 80) -> str:
    return plain_text(as_rich(trial), width) + "\n"


def as_rich(trial: Trial) -> list[RenderableType]:
    """The table of arms, a note and the verdict."""
    table = WideTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_edge=False)
    names = [folded(arm.name) for arm in trial.arms]
    lettered = any(len(line) > NAME for name in names for line in name.split("\n"))
    heads = [letter(i) if lettered else escape(name) for i, name in enumerate(names)]
    table.add_column("arm", no_wrap=True)
    table.add_column("top-1 %", justify="right", no_wrap=True)
    table.add_column("difference", no_wrap=True)
    for heading in ("params", "MFLOPs", "infer", "train"):
        table.add_column(heading, justify="right", no_wrap=True)
    for i, arm in enumerate(trial.arms):
        table.add_row(heads[i], *_row(arm, decimals(trial)))
    legend = [Text(f"{letter(i)}  {arm.name}") for i, arm in enumerate(trial.arms)] if lettered else []
    data, seeds = trial.data, len(trial.seeds)
    corrected = f"; * after Holm's correction for {trial.comparisons} comparisons" if trial.comparisons else ""
    note = (
        f"{escape(data.name)}: {data.train:,} training and {data.val:,} validation images, {trial.recipe['epochs']} "
        f"epochs, {seeds} seed{'s' if seeds > 1 else ''}. top-1: after the last epoch, mean ± standard deviation over "
        f"seeds. difference: from {escape(trial.arms[0].name)}, in points, paired by seed and image, with a "
        f"{interval_level(trial)} interval{corrected}; not shown: the interval includes zero. params: parameters. "
        f"MFLOPs: millions of operations per image, two per multiply-add. infer, train: throughput as a ratio to the "
        f"first arm."
    )
    for arm in trial.arms:
        if own := untuned_fields(arm):
            text = ", ".join(f"{name} = {value}" for name, value in own.items())
            note += f" Not on the same budget: {escape(arm.name)} alone has {escape(text)}."
    notes = [f"[dim]{escape(text)}[/dim]\n" for text in design(trial)]
    verdict = f"[bold]{escape(trial.verdict.text)}[/bold]"
    return [*legend, table, f"[dim]{note}[/dim]\n", *_tokens(trial, heads), *notes, verdict]


def _tokens(trial: Trial, heads: list[str]) -> list[RenderableType]:
    """Scores of frozen tokens: a table per kind of token and probe, a note, and what has no score."""
    if trial.tokens is None:
        return []
    pieces: list[RenderableType] = []
    for probe in trial.tokens.probes:
        table = WideTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_edge=False)
        table.add_column("arm", no_wrap=True)
        columns = token_columns(trial, probe)
        for heading in columns:
            table.add_column(f"{heading}, %", justify="right", no_wrap=True)
            table.add_column("difference", no_wrap=True)
        for head, *scores in zip(heads, *columns.values(), strict=True):
            table.add_row(head, *(cell for score in scores for cell in _score(*score)))
        pieces += [Text(title_of(probe)), table, ""]
    missing = [f"{name}: {reason}" for name, reason in trial.tokens.missing.items()]
    return [*pieces, *(f"[dim]{escape(text)}[/dim]\n" for text in (token_note(trial), *missing) if text)]


def _score(score: SeedSpread | None, difference: Difference | None) -> tuple[str, str]:
    if score is None or score.mean is None:
        return "–", ""
    deviation = "" if score.sd is None else f"\n± {100 * score.sd:.1f}"
    return f"{100 * score.mean:.1f}{deviation}", "" if difference is None else _difference(difference, 1)


def folded(name: str) -> str:
    """A name on several lines if it is long, broken before + only.

    Example:
        >>> print(folded("no_skip+augmented_shortcut"))
        no_skip
        +augmented_shortcut
    """
    lines = [""]
    for piece in re.findall(r"\+?[^+]+", name):
        lines += [piece] if lines[-1] and len(lines[-1] + piece) > NAME else [lines.pop() + piece]
    return "\n".join(lines)


def _row(arm: Arm, digits: int) -> list[str]:
    accuracy = "failed" if arm.top1.mean is None else f"{100 * arm.top1.mean:.1f}"
    if arm.top1.sd is not None:
        accuracy += f"\n± {100 * arm.top1.sd:.1f}"
    difference = "" if arm.difference is None else _difference(arm.difference, digits)
    return [
        accuracy,
        difference,
        "" if arm.parameters is None else _size(arm.parameters),
        "" if arm.flops is None else f"{arm.flops / 1e6:,.1f}",
        _ratio(arm.inference),
        _ratio(arm.training),
    ]


def _difference(difference: Difference, digits: int) -> str:
    mean, low, high = (signed_points(v, digits) for v in (difference.mean, difference.low, difference.high))
    mark = " *" if difference.survives else "" if difference.shown else " not shown"
    return f"{mean}{mark}\n({low} to {high})"


def _ratio(speed: Speed | None) -> str:
    return "" if speed is None else f"{speed.ratio.median:.2f}"


def _size(count: int) -> str:
    return f"{count / 1e6:.2f} M" if count >= 1e6 else f"{count / 1e3:.1f} k"

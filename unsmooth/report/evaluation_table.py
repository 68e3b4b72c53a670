"""An evaluation as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from unsmooth.report import token_table
from unsmooth.report.terminal import WideTable, plain_text

if TYPE_CHECKING:
    from unsmooth.results.evaluation import Evaluation, ModelCost

SHOWN = 5  # skipped images listed per test


def as_text(evaluation: Evaluation) -> str:
    return plain_text(as_rich(evaluation))


def as_rich(evaluation: Evaluation) -> list[RenderableType]:
    """Title, table, scores of tokens, cost and skipped images."""
    table = WideTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("test", overflow="fold")
    for title in ("images", "top-1 %", "95 % interval", "top-5 %", "95 % interval", "loss"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in evaluation.rows:
        loss = "–" if row.loss is None else f"{row.loss:.3f}"
        top1, top5 = _percent(row.top1), _percent(row.top5)
        table.add_row(
            escape(row.test), f"{row.images:,}", top1, _interval(row.top1_interval), top5,
            _interval(row.top5_interval), loss,
        )  # fmt: skip
    pieces: list[RenderableType] = [Text(evaluation.model.name, style="bold"), *([table] if evaluation.rows else [])]
    if evaluation.tokens is not None:
        pieces += token_table.as_rich(evaluation.tokens)
    pieces.append(Text(_cost(evaluation.cost), style="dim"))
    pieces += [Text(f"warning: {warning}", style="yellow") for warning in evaluation.warnings]
    not_finite = sum(row.not_finite for row in evaluation.rows)
    if not_finite:
        pieces.append(Text(f"{not_finite} predictions were NaN or Inf and count as wrong", style="yellow"))
    for test, skipped in evaluation.skipped.items():
        pieces.append(Text(f"{len(skipped)} images of {test} were skipped"))
        pieces += [Text(f"skipped {name}: {reason}", style="dim") for name, reason in list(skipped.items())[:SHOWN]]
    return pieces


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}"


def _interval(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else " – ".join(map(_percent, interval))


def _cost(cost: ModelCost) -> str:
    unit, size = ("G", 1e9) if cost.flops >= 1e9 else ("M", 1e6)
    text = f"{cost.parameters:,} parameters, {cost.flops / size:.3g} {unit}FLOPs per image"
    if cost.throughput is not None:
        low, high = cost.throughput.quartiles
        text += f", {cost.throughput.images_per_second:,.0f} images/s (quartiles {low:,.0f} to {high:,.0f})"
    return text

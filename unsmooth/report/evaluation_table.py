"""An evaluation as a table for the terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

SHOWN = 5  # skipped images that are named in the table


def as_rich(data: dict[str, Any]) -> list[RenderableType]:
    """Title, table, costs and what was skipped, as pieces that rich can print."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("test", overflow="fold")
    for title in ("images", "top-1 %", "95 % interval", "top-5 %", "95 % interval", "loss"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in data["rows"]:
        loss = "–" if row["loss"] is None else f"{row['loss']:.3f}"
        top1, top5 = _percent(row["top1"]), _percent(row["top5"])
        table.add_row(
            escape(row["test"]), f"{row['images']:,}", top1, _interval(row["top1_interval"]), top5,
            _interval(row["top5_interval"]), loss,
        )  # fmt: skip
    pieces: list[RenderableType] = [Text(data["model"]["name"], style="bold"), table]
    pieces.append(Text(_cost(data["cost"]), style="dim"))
    broken = sum(row["not_finite"] for row in data["rows"])
    if broken:
        pieces.append(Text(f"{broken} answers were NaN or Inf and count as wrong", style="yellow"))
    for test, skipped in data["skipped"].items():
        pieces.append(Text(f"{len(skipped)} images of {test} were skipped"))
        pieces += [Text(f"skipped {name}: {why}", style="dim") for name, why in list(skipped.items())[:SHOWN]]
    return pieces


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}"


def _interval(interval: list[float] | None) -> str:
    return "–" if interval is None else " – ".join(map(_percent, interval))


def _cost(cost: dict[str, Any]) -> str:
    unit, size = ("G", 1e9) if cost["flops"] >= 1e9 else ("M", 1e6)
    text = f"{cost['parameters']:,} parameters, {cost['flops'] / size:.3g} {unit}FLOPs for an image"
    if cost["throughput"]:
        speed = cost["throughput"]
        low, high = speed["quartiles"]
        text += f", {speed['images_per_second']:,.0f} images a second (quartiles {low:,.0f} and {high:,.0f})"
    return text

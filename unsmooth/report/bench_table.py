"""A bench as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from unsmooth.spec import parse
from unsmooth.utils.text import in_words, rounded

UNITS = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9))


def as_rich(data: dict[str, Any]) -> list[RenderableType]:
    """A table of operations and energy, one of speed where it was measured, and the assumptions behind both."""
    rows, precision = data["rows"], data["precision"]
    names = labels([row["name"] for row in rows])
    counts = [count for row in rows for count in (row["flops"], row["operations"]["add"])]
    unit, size = next(pair for pair in reversed(UNITS) if max(counts) >= pair[1] or pair[1] == 1.0)
    table = _table("model", "parameters", f"{unit}FLOPs", f"{unit} adds", f"{unit} mults", precision, "less")
    for name, row in zip(names, rows, strict=True):
        operations = row["operations"]
        amounts = (row["flops"], operations["add"], operations["multiply"])
        table.add_row(
            escape(name), f"{row['parameters']:,}", *(f"{amount / size:,.3f}" for amount in amounts),
            _energy(row, precision), f"{1 / row['energy'][precision]['ratio']:.2f} ×",
        )  # fmt: skip
    pieces: list[RenderableType] = [table]
    for kind in ("inference", "training"):
        if rows[0][kind] is not None:
            pieces.append(_speeds(kind, names, rows))
    return [*pieces, *(Text(line, style="dim") for line in _notes(data))]


def labels(names: Sequence[str]) -> list[str]:
    """Specs on the first one's host as their remedies alone: +adder."""

    def host(name: str) -> str:
        try:
            return str(parse(name).host)
        except ValueError:  # a model that was given as an object has a name, and no spec
            return name

    first = host(names[0])
    return [
        name[len(first) :] if i and name.startswith(f"{first}+") and host(name) == first else name
        for i, name in enumerate(names)
    ]


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(headings[0], overflow="fold")
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _speeds(kind: str, names: Sequence[str], rows: Sequence[dict[str, Any]]) -> Table:
    table = _table(kind, "images/s", "quartiles", "ratio", "quartiles")
    for name, row in zip(names, rows, strict=True):
        speed, ratio = row[kind], row[kind]["ratio"]
        low, high = speed["quartiles"]
        table.add_row(
            escape(name), _speed(speed["images_per_second"]), f"{_speed(low)}–{_speed(high)}", f"{ratio['median']:.3f}",
            f"{ratio['low']:.3f}–{ratio['high']:.3f}",
        )  # fmt: skip
    return table


def _notes(data: dict[str, Any]) -> list[str]:
    rows, precision, settings = data["rows"], data["precision"], data["settings"]
    sizes = dict.fromkeys("{1} × {2}".format(*row["size"]) for row in rows)
    notes = [
        f"For one image of {' and '.join(sizes)} pixels. FLOPs: two for a multiply-add of products and convolutions. "
        f"{precision}: energy of the additions and multiplications, and how many times less than the first."
    ]
    if rows[0]["inference"] is not None:
        notes.append(
            f"Images per second: medians over {settings['rounds']} interleaved rounds, batch {settings['batch_size']}, "
            f"amp {settings['amp']}, on {settings['device']} ({settings['machine']}, {settings['threads']} threads); "
            "ratios to the first, of one round each."
        )
    notes += [f"Energies of an operation: {data['source']}.", "Assumed:"]
    return notes + [f"- {line}" for line in data["assumptions"]]


def _energy(row: dict[str, Any], precision: str) -> str:
    return in_words(row["energy"][precision]["millijoules"])


def _speed(images_per_second: float) -> str:
    return rounded(images_per_second, 3)

"""A bench as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from unsmooth.report.terminal import WideTable, plain_text
from unsmooth.spec import parse
from unsmooth.utils.text import format_energy, rounded

if TYPE_CHECKING:
    from unsmooth.results.bench import Bench, Throughput

UNITS = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9))


def as_text(bench: Bench) -> str:
    return plain_text(as_rich(bench), width=80)


def as_rich(bench: Bench) -> list[RenderableType]:
    """A table of operations and energy, tables of throughput if it was measured, and the assumptions."""
    rows, precision = bench.rows, bench.precision
    names = labels(bench.keys())
    counts = [count for row in rows for count in (row.flops, row.operations.add)]
    unit, size = next(pair for pair in reversed(UNITS) if max(counts) >= pair[1] or pair[1] == 1.0)
    table = _table("model", "parameters", f"{unit}FLOPs", f"{unit} adds", f"{unit} mults", precision, "saving")
    for name, row in zip(names, rows, strict=True):
        amounts = (row.flops, row.operations.add, row.operations.multiply)
        energy = row.energy[precision]
        table.add_row(
            escape(name), f"{row.parameters:,}", *(f"{amount / size:,.3f}" for amount in amounts),
            format_energy(energy.millijoules), f"{1 / energy.ratio:.2f} ×",
        )  # fmt: skip
    speeds = {"inference": [row.inference for row in rows], "training": [row.training for row in rows]}
    timed = [_speeds(mode, names, by_model) for mode, by_model in speeds.items() if by_model[0] is not None]
    return [table, *timed, *(Text(line, style="dim") for line in _notes(bench))]


def labels(names: Sequence[str]) -> list[str]:
    """Short names: a spec with the same host as the first one becomes its remedies, such as "+adder"."""

    def host(name: str) -> str:
        try:
            return str(parse(name).host)
        except ValueError:  # a model that was passed as an object has a name but no spec
            return name

    first = host(names[0])
    return [
        name[len(first) :] if i and name.startswith(f"{first}+") and host(name) == first else name
        for i, name in enumerate(names)
    ]


def _table(*headings: str) -> WideTable:
    table = WideTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(headings[0], overflow="fold")
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _speeds(mode: str, names: Sequence[str], speeds: Sequence[Throughput | None]) -> WideTable:
    table = _table(mode, "images/s", "quartiles", "ratio", "quartiles")
    for name, speed in zip(names, speeds, strict=True):
        assert speed is not None, "either all models are timed or none"
        low, high = speed.quartiles
        table.add_row(
            escape(name), _speed(speed.images_per_second), f"{_speed(low)}–{_speed(high)}", f"{speed.ratio.median:.3f}",
            f"{speed.ratio.low:.3f}–{speed.ratio.high:.3f}",
        )  # fmt: skip
    return table


def _notes(bench: Bench) -> list[str]:
    settings = bench.settings
    sizes = dict.fromkeys(" × ".join(map(str, row.size[-2:])) for row in bench.rows)
    notes = [
        f"Per image of {' and '.join(sizes)} pixels. FLOPs: two per multiply-add of products and convolutions. "
        f"{bench.precision}: energy of the additions and multiplications. saving: energy of the first model divided by "
        "that of the row."
    ]
    if bench.rows[0].inference is not None:
        notes.append(
            f"Images per second: medians over {settings.rounds} interleaved rounds, batch size {settings.batch_size}, "
            f"amp {settings.amp}, on {settings.device} ({settings.machine}, {settings.threads} threads). "
            "ratio: to the first model, within a round."
        )
    notes += [f"Energy per operation: {bench.source}.", "Assumptions:"]
    return notes + [f"- {line}" for line in bench.assumptions]


def _speed(images_per_second: float) -> str:
    return rounded(images_per_second, 3)

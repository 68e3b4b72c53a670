"""A reproduction as tables: published next to measured values, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich import box
from rich.console import RenderableType
from rich.markup import escape

from unsmooth.data.images import evenly_spaced
from unsmooth.report.metrics import METRICS, format_value
from unsmooth.report.terminal import WideTable

if TYPE_CHECKING:
    from unsmooth.results.reproduction import ClaimResult, GroupResult, MeasuredValue, Reproduction

STATES = {"confirmed": "confirmed", "contradicted": "contradicted", "undecided": "not decidable at this scale"}
POSITIONS = 5  # positions shown per curve
HEADINGS = ["arm", "published", "measured", "published gain", "measured gain", "agreement"]


class TableText(NamedTuple):
    """The cells of a table as text."""

    title: str
    headings: list[str]
    rows: list[list[str]]


def tables_of(group: GroupResult) -> list[TableText]:
    """The tables of a group: one per metric, one of all counts, and one per kind of curve."""
    metrics = list(dict.fromkeys(name for row in group.rows for name in row.values))
    counts = [name for name in metrics if METRICS[name].counted]
    return [
        *(
            TableText(METRICS[name].title, HEADINGS, _metric_rows(name, group))
            for name in metrics
            if name not in counts
        ),
        *([_count_table(group, counts)] if counts else []),
        *_curve_tables(group),
    ]


def _count_table(group: GroupResult, names: Sequence[str]) -> TableText:
    """Counts on hosts of published size: printed and counted values side by side."""
    headings = [f"{METRICS[name].title}: {side}" for name in names for side in ("published", "counted")]
    rows = []
    for row in group.rows:
        values = [row.values.get(name) for name in names]
        cells = [
            format_value(name, value)
            for name, both in zip(names, values, strict=True)
            for value in ((both.published, both.measured) if both is not None else (None, None))
        ]
        rows.append([row.name, *cells])
    return TableText("size, on hosts of published size", ["arm", *headings], rows)


def _metric_rows(name: str, group: GroupResult) -> list[list[str]]:
    return [
        [
            row.name, format_value(name, value.published), row.failed or row.why or _measured(name, value),
            value.published_words or _gain(name, value.published_gain), _gain_with_interval(name, value),
            agreement(name, value),
        ]
        for row in group.rows
        if (value := row.values.get(name)) is not None
    ]  # fmt: skip


def _curve_tables(group: GroupResult) -> list[TableText]:
    """One row per arm and curve, at a few positions."""
    curves = [(row.name, label, curve) for row in group.rows for label, curve in row.curves.items()]
    tables = []
    for by in dict.fromkeys(curve.by for _, _, curve in curves):
        points = [(name, label, curve.points) for name, label, curve in curves if curve.by == by]
        positions = sorted({x for _, _, values in points for x in values})
        shown = [positions[i] for i in evenly_spaced(len(positions), POSITIONS)]
        rows = [
            [name, label, *(f"{values[x]:.3g}".replace("-", "−") if x in values else "–" for x in shown)]
            for name, label, values in points
        ]
        tables.append(TableText("", ["arm", f"curve, by {by}", *(f"{x:g}" for x in shown)], rows))
    return tables


def as_rich(reproduction: Reproduction) -> list[RenderableType]:
    """Tables, notes and claims for the terminal."""
    pieces: list[RenderableType] = [f"[bold]{escape(reproduction.title)}[/bold] ({escape(reproduction.source)})"]
    for group in reproduction.groups:
        pieces.append(f"\n[bold]{escape(group.title)}[/bold]")
        for title, headings, rows in tables_of(group):
            table = WideTable(*headings, title=title or None, title_justify="left", title_style="", box=box.SIMPLE_HEAD,
                          pad_edge=False, collapse_padding=True)  # fmt: skip
            for cells in rows:
                table.add_row(*(escape(cell) for cell in cells))
            pieces.append(table)
        pieces += [f"[dim]{escape(note)}[/dim]" for note in notes_of(group)]
    pieces += [escape(line) for line in claim_lines(reproduction)]
    pieces += [f"[dim]{escape(line)}[/dim]" for line in scale_lines(reproduction)]
    return pieces


def as_markdown(reproduction: Reproduction) -> str:
    """The whole reproduction as a page in Markdown."""
    lines = [f"# {reproduction.title} ({reproduction.source})", "", reproduction.shows, "", *body(reproduction)]
    if reproduction.provenance.command:
        lines += ["", f"Made by `{reproduction.provenance.command}` in {reproduction.provenance.seconds:,.0f} s."]
    return "\n".join(lines) + "\n"


def body(reproduction: Reproduction) -> list[str]:
    """Tables, claims and differences in Markdown."""
    lines = []
    for group in reproduction.groups:
        lines += [f"**{group.title}**", ""]
        for title, headings, rows in tables_of(group):
            lines += [title, ""] if title else []
            lines += [_markdown_row(headings), _markdown_row(["---"] * len(headings)), *map(_markdown_row, rows), ""]
        lines += [line for note in notes_of(group) for line in (note, "")]
    return [*lines, *(f"- {line}" for line in (*claim_lines(reproduction), *scale_lines(reproduction)))]


def notes_of(group: GroupResult, figure: bool = True) -> list[str]:
    notes = [f"Figure: {group.picture}."] if figure and group.picture is not None else []
    if group.like is not None:
        notes.append(f"Not run: at small scale its models are those of {group.like}.")
    skipped = sorted({reason for row in group.rows for reason in row.skipped or ()})
    return [*notes, *(f"Not measured on some blocks: {reason}." for reason in skipped)]


def claim_lines(reproduction: Reproduction) -> list[str]:
    """One line per claim: its text, where it comes from, and its state for each model."""
    titles = short_titles(reproduction)
    return [f"{claim.text} ({claim.source}): {_states(claim, titles)}." for claim in reproduction.claims]


class ClaimRow(NamedTuple):
    """A claim of a page. `style` is its state if it is the same for all models."""

    text: str
    source: str
    state: str
    style: str


def claim_rows(reproduction: Reproduction) -> list[ClaimRow]:
    """Every claim with its state as text."""
    titles, rows = short_titles(reproduction), []
    for claim in reproduction.claims:
        states = {check.state for check in claim.checks}
        style = states.pop() if len(states) == 1 else "mixed"
        rows.append(ClaimRow(claim.text, claim.source, _states(claim, titles), style))
    return rows


def short_titles(reproduction: Reproduction) -> dict[str, str]:
    """Specs that ran in each group, by the name of the group."""
    return {group.name: group.ran or group.name for group in reproduction.groups}


def _states(claim: ClaimResult, titles: dict[str, str]) -> str:
    if not claim.checks:
        return "not measured by this run"
    by_state: dict[str, list[str]] = {}
    for check in claim.checks:
        by_state.setdefault(STATES[check.state], []).append(f"{titles.get(check.group, check.group)}, {check.arm}")
    if len(by_state) == 1:
        (state,), count = by_state, len(claim.checks)
        return state + (f" for all {count} models" if count > 1 else "")
    return "; ".join(f"{state} for {' and '.join(models)}" for state, models in by_state.items())


def scale_lines(reproduction: Reproduction) -> list[str]:
    """Assumptions, and differences from the paper."""
    assumptions = dict.fromkeys(line for group in reproduction.groups for line in group.assumptions or ())
    differs = reproduction.scale.differs
    return [*(f"Assumes: {line}" for line in assumptions), *(f"Differs: {line}" for line in differs)]


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _measured(name: str, value: MeasuredValue) -> str:
    text = format_value(name, value.measured)
    return text if value.sd is None else f"{text} ± {format_value(name, value.sd)}"


def _gain(name: str, gain: float | None) -> str:
    if gain is None:
        return ""
    if METRICS[name].comparison == "ratio":
        return f"×{gain:.2f}"
    return f"{gain:+.{METRICS[name].decimals}f}".replace("-", "−")


def _gain_with_interval(name: str, value: MeasuredValue) -> str:
    if value.gain is None or value.low is None:
        return _gain(name, value.gain)
    ends = "quartiles " if value.ends == "quartiles" else ""
    return f"{_gain(name, value.gain)} ({ends}{_gain(name, value.low)} to {_gain(name, value.high)})"


def agreement(name: str, value: MeasuredValue) -> str:
    """Whether the measured gain has the sign of the published one."""
    if value.published_gain is None or value.gain is None or value.ends == "quartiles":
        return ""
    if value.low is None or value.high is None:
        return "no interval"
    neutral = 1.0 if METRICS[name].comparison == "ratio" else 0.0
    if value.low <= neutral <= value.high:
        return "no difference shown"
    return "same sign" if (value.published_gain - neutral) * (value.gain - neutral) > 0 else "opposite sign"

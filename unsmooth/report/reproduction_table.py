"""A reproduction as tables: published beside measured, for the terminal and as Markdown."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from unsmooth.data.images import evenly_spaced
from unsmooth.report.measures import MEASURES, written

SHOWN = 5  # places along a curve


Table_ = tuple[str, list[str], list[list[str]]]  # title, headings, lines


def tables_of(group: Row) -> list[Table_]:
    """The tables of a group: one for each measure, and one of its curves."""
    measures = dict.fromkeys(name for row in group["rows"] for name in row["values"])
    found = [(MEASURES[name].title, HEADINGS, _lines(name, group)) for name in measures]
    return [*found, *_curves(group)]


HEADINGS = ["arm", "published", "measured", "gain there", "gain here", "reading"]


def _lines(name: str, group: Row) -> list[list[str]]:
    lines = []
    for row in group["rows"]:
        value = row["values"].get(name)
        if value is not None:
            theirs = value.get("published_words") or _gain(name, value["published_gain"])
            lines.append([
                row["name"], written(name, value["published"]), row.get("failed") or _measured(name, value), theirs,
                _gain_with_ends(name, value), agreement(name, value),
            ])  # fmt: skip
    return lines


def _curves(group: Row) -> list[Table_]:
    """A line for each arm and curve, at some places along it."""
    kinds = dict.fromkeys(curve["by"] for row in group["rows"] for curve in row["curves"].values())
    found = []
    for by in kinds:
        chosen = [(row["name"], label, _at(curve)) for row in group["rows"] for label, curve in row["curves"].items()
                  if curve["by"] == by]  # fmt: skip
        places = sorted({place for _, _, values in chosen for place in values})
        shown = [places[i] for i in evenly_spaced(len(places), SHOWN)]
        lines = [
            [name, label, *(f"{values[p]:.3g}".replace("-", "−") if p in values else "–" for p in shown)]
            for name, label, values in chosen
        ]
        found.append(("", ["arm", f"curve, by {by}", *(f"{place:g}" for place in shown)], lines))
    return found


def _at(curve: Row) -> dict[float, float]:
    """The values of a curve by place; what was not measured is left out."""
    places = curve.get("at") or range(len(curve["mean"]))
    return {place: value for place, value in zip(places, curve["mean"], strict=True) if value is not None}


def as_rich(found: dict[str, Any]) -> list[RenderableType]:
    pieces: list[RenderableType] = [f"[bold]{escape(found['title'])}[/bold] ({escape(found['source'])})"]
    for group in found["groups"]:
        pieces.append(f"\n[bold]{escape(group['name'])}[/bold]")
        for title, headings, lines in tables_of(group):
            table = Table(*headings, title=title or None, title_justify="left", title_style="", box=box.SIMPLE_HEAD,
                          pad_edge=False, collapse_padding=True)  # fmt: skip
            for line in lines:
                table.add_row(*(escape(cell) for cell in line))
            pieces.append(table)
        pieces += [f"[dim]{escape(note)}[/dim]" for note in notes_of(group)]
    pieces += [escape(line) for line in claim_lines(found)]
    pieces += [f"[dim]{escape(line)}[/dim]" for line in scale_lines(found)]
    return pieces


def as_markdown(found: dict[str, Any]) -> str:
    """The whole outcome as a page of text."""
    lines = [f"# {found['title']} ({found['source']})", "", found["shows"], "", *body(found)]
    if found["made"]["command"]:
        lines += ["", f"Made by `{found['made']['command']}` in {found['made']['seconds']:,.0f} s."]
    return "\n".join(lines) + "\n"


def body(found: dict[str, Any]) -> list[str]:
    """Tables, claims and differences in Markdown."""
    lines = []
    for group in found["groups"]:
        lines += [f"**{group['name']}**", ""]
        for title, headings, rows in tables_of(group):
            lines += [title, ""] if title else []
            lines += [_line(headings), _line(["---"] * len(headings)), *(_line(row) for row in rows), ""]
        lines += [line for note in notes_of(group) for line in (note, "")]
    return [*lines, *(f"- {line}" for line in (*claim_lines(found), *scale_lines(found)))]


def notes_of(group: Row) -> list[str]:
    notes = [f"MaskedSample in {group['picture']}."] if "picture" in group else []
    if "like" in group:
        notes.append(f"Not run apart: with --small its hosts are those of {group['like']}.")
    skipped = sorted({reason for row in group["rows"] for reason in row.get("skipped", ())})
    return [*notes, *(f"Not measured on some blocks: {reason}." for reason in skipped)]


def claim_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for claim in found["claims"]:
        held = sum(one["holds"] for one in claim["found"])
        not_in = [f"{one['group']}, {one['arm']}" for one in claim["found"] if not one["holds"]]
        where = f"; not in {'; '.join(not_in)}" if not_in else ""
        count = len(claim["found"])
        lines.append(f"{claim['text']}: so in {held} of {count} model{'s' if count > 1 else ''} here{where}.")
    return lines


def scale_lines(found: dict[str, Any]) -> list[str]:
    assumed = dict.fromkeys(line for group in found["groups"] for line in group.get("assumptions", ()))
    return [*(f"Assumes: {line}" for line in assumed), *(f"Differs: {line}" for line in found["scale"]["differs"])]


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _measured(name: str, value: Row) -> str:
    text = written(name, value["measured"])
    return text if value["sd"] is None else f"{text} ± {written(name, value['sd'])}"


def _gain(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"×{value:.2f}" if MEASURES[name].how == "ratio" else f"{value:+.{MEASURES[name].digits}f}".replace("-", "−")


def _gain_with_ends(name: str, value: Row) -> str:
    if value["gain"] is None or value["low"] is None:
        return _gain(name, value["gain"])
    ends = "quartiles " if value["ends"] == "quartiles" else ""
    return f"{_gain(name, value['gain'])} ({ends}{_gain(name, value['low'])} to {_gain(name, value['high'])})"


Row = dict[str, Any]


def agreement(name: str, value: Row) -> str:
    """Whether the measured gain says what the published one says."""
    gain, low, high = value["published_gain"], value["low"], value["high"]
    if gain is None or value["gain"] is None or value["ends"] == "quartiles":
        return ""
    if low is None or high is None:
        return "no interval: not eval_model"
    none = 1.0 if MEASURES[name].how == "ratio" else 0.0
    if low <= none <= high:
        return "no difference shown"
    return "agrees in sign" if (gain - none) * (value["gain"] - none) > 0 else "opposite sign"

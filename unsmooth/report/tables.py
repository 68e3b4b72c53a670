"""A diagnosis as text: a table by block, findings and verdict, for a terminal or a notebook."""

from __future__ import annotations

import io
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from unsmooth.utils.text import blocks_text

# What fits in 80 columns and says most; `diagnosis[key]` and the report have the rest.
COLUMNS: dict[tuple[str, str], str] = {
    ("token_cosine", ""): "token\ncosine",
    ("high_frequency_ratio", ""): "high\nfreq.",
    ("effective_rank", ""): "eff.\nrank",
    ("log_condition", ""): "log\ncond.",
    ("attention_cosine", ""): "map\ncosine",
    ("attention_entropy", "share"): "map\nentropy",
    ("branch_ratio", "attn"): "attn\n/skip",
    ("branch_ratio", "mlp"): "mlp\n/skip",
    ("block_influence", ""): "infl.",
    ("depth_probe", ""): "probe",
}
MOST_COLUMNS = 9
STATES = {
    "healthy": "green", "untrained": "cyan", "suspicious": "yellow", "collapsing": "yellow", "collapsed": "red",
    "broken": "red", "unknown": "cyan",
}  # fmt: skip
SEVERITY = {"severe": "red", "warning": "yellow", "note": "cyan"}


def as_text(data: dict[str, Any], width: int = 100) -> str:
    """The table, findings and verdict as plain text."""
    file = io.StringIO()
    console = Console(file=file, width=width, no_color=True, force_terminal=False)
    for piece in as_rich(data):
        console.print(piece, highlight=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def as_rich(data: dict[str, Any]) -> list[RenderableType]:
    """The same as pieces that rich can print in colour."""
    images, model = data["images"], data["model"]
    skipped = f", {len(images['skipped'])} skipped" if images["skipped"] else ""
    count = f"{images['count']} image{'s' if images['count'] != 1 else ''}"
    head = f"[bold]{escape(model['name'])}[/bold] on {count} of {escape(images['source'])}{skipped}"
    pieces: list[RenderableType] = [Text.from_markup(head), _table(data)]
    pieces += [Text(f"skipped {name}: {reason}", style="dim") for name, reason in list(images["skipped"].items())[:5]]
    for finding in data["findings"]:
        pieces += _finding(finding)
    verdict = data["verdict"]
    style = STATES[verdict["state"]]
    pieces.append(Text.assemble(("Verdict: ", "bold"), (verdict["state"], f"bold {style}"), f". {verdict['text']}"))
    return pieces


def _table(data: dict[str, Any]) -> Table:
    vitals = data["vitals"]
    columns = {c: title for c, title in COLUMNS.items() if c[1] in vitals.get(c[0], {}).get("parts", {})}
    if not columns:  # other vitals were asked for: show their main parts
        columns = {(k, v["main"]): v["title"] for k, v in vitals.items() if v["main"] in v["parts"]}
    columns = dict(list(columns.items())[:MOST_COLUMNS])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("block", justify="right")
    for title in columns.values():
        table.add_column(title, justify="right")
    marked = (
        set(data["verdict"]["blocks"]) if data["verdict"]["state"] in ("collapsing", "collapsed", "broken") else set()
    )
    for b in range(len(data["model"]["blocks"])):
        cells = [_cell(vitals[key]["parts"][part][b]) for key, part in columns]
        if any(cell != "–" for cell in cells) or b in marked:
            table.add_row(f"{'▸ ' if b in marked else ''}{b}", *cells, style="bold" if b in marked else None)
    return table


def _cell(spread: dict[str, Any] | None) -> str:
    if spread is None or not isinstance(spread.get("mean"), float | int):
        return "–"
    value = spread["mean"]
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def _finding(finding: dict[str, Any]) -> list[RenderableType]:
    style = SEVERITY[finding["severity"]]
    why = f" Why: {finding['why']}." if finding.get("why") else ""
    pieces: list[RenderableType] = [
        Text.assemble(
            (finding["title"], f"bold {style}"), f" ({blocks_text(finding['blocks'])}): ", finding["text"], why
        )
    ]
    pieces += [_indented(f"{row['vital']}: {row['text']}") for row in finding["evidence"]]
    for row in finding["remedies"]:
        if not row["fits"] or finding["severity"] == "note":  # of a note, nobody need do anything; the report has all
            continue
        spec = f"try {row['spec']}: " if row["spec"] else ""
        safe = "" if not row["spec"] else "; safe on pretrained weights" if row["safe"] else "; changes outputs at once"
        pieces.append(_indented(f"{spec}{row['reason']}{safe}"))
    return [*pieces, Text("")]


def _indented(text: str) -> Padding:
    return Padding(Text(text, style="dim"), (0, 0, 0, 4))

"""A diagnosis as text: a table by block, the findings and the verdict."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from unsmooth.utils.text import blocks_text

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis, Finding, Spread

# The most informative columns that fit in 80 characters; `diagnosis[key]` and the report have the rest.
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


def as_text(diagnosis: Diagnosis, width: int = 100) -> str:
    """The table, the findings and the verdict as plain text."""
    file = io.StringIO()
    console = Console(file=file, width=width, no_color=True, force_terminal=False)
    for piece in as_rich(diagnosis):
        console.print(piece, highlight=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def as_rich(diagnosis: Diagnosis) -> list[RenderableType]:
    """The same as renderables of rich, in colour."""
    images, verdict = diagnosis.images, diagnosis.conclusion
    skipped = f", {len(images.skipped)} skipped" if images.skipped else ""
    count = f"{images.count} image{'s' if images.count != 1 else ''}"
    head = f"[bold]{escape(diagnosis.model.name)}[/bold] on {count} from {escape(images.source)}{skipped}"
    pieces: list[RenderableType] = [Text.from_markup(head), _table(diagnosis)]
    pieces += [Text(f"skipped {name}: {reason}", style="dim") for name, reason in list(images.skipped.items())[:5]]
    for finding in diagnosis.findings:
        pieces += _finding(finding)
    style = STATES.get(verdict.state, "cyan")
    pieces.append(Text.assemble(("Verdict: ", "bold"), (verdict.state, f"bold {style}"), f". {verdict.text}"))
    return pieces


def _table(diagnosis: Diagnosis) -> Table:
    vitals, verdict = diagnosis.vitals, diagnosis.conclusion
    columns = {
        (key, part): title for (key, part), title in COLUMNS.items() if key in vitals and part in vitals[key].parts
    }
    if not columns:
        columns = {(key, vital.main): vital.title for key, vital in vitals.items() if vital.main in vital.parts}
    columns = dict(list(columns.items())[:MOST_COLUMNS])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("block", justify="right")
    for title in columns.values():
        table.add_column(title, justify="right")
    marked = verdict.blocks if verdict.state in ("collapsing", "collapsed", "broken") else []
    for b in range(diagnosis.blocks):
        cells = [_cell(vitals[key].parts[part][b]) for key, part in columns]
        if any(cell != "–" for cell in cells) or b in marked:
            table.add_row(f"{'▸ ' if b in marked else ''}{b}", *cells, style="bold" if b in marked else None)
    return table


def _cell(spread: Spread | None) -> str:
    if spread is None or not isinstance(spread.mean, float):
        return "–"
    return f"{spread.mean:.1f}" if abs(spread.mean) >= 10 else f"{spread.mean:.3f}"


def _finding(finding: Finding) -> list[RenderableType]:
    cause = f" Most likely cause: {finding.why}." if finding.why else ""
    title = (finding.title, f"bold {SEVERITY[finding.severity]}")
    pieces: list[RenderableType] = [
        Text.assemble(title, f" ({blocks_text(finding.blocks)}): ", finding.text, cause),
        *(_indented(f"{evidence.vital}: {evidence.text}") for evidence in finding.evidence),
    ]
    for candidate in finding.remedies:
        if not candidate.fits or finding.severity == "note":  # a note needs no action; the report lists all candidates
            continue
        if not candidate.spec:
            pieces.append(_indented(candidate.reason))
            continue
        safety = "safe on pretrained weights" if candidate.safe else "changes the outputs at once"
        pieces.append(_indented(f"try {candidate.spec}: {candidate.reason}; {safety}"))
    return [*pieces, Text("")]


def _indented(text: str) -> Padding:
    return Padding(Text(text, style="dim"), (0, 0, 0, 4))

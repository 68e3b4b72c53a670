"""A diagnosis as text: a table by block, the findings and the verdict."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from unsmooth.report.terminal import WideTable
from unsmooth.report.values import deciding_vitals
from unsmooth.utils.text import blocks_text

if TYPE_CHECKING:
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.results.measured import Spread, VitalResult
    from unsmooth.results.verdict import Evidence, Finding

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
}
PROBE = ("depth_probe", "")  # with labels: accuracy and its interval, which take the place of two other columns
MOST_COLUMNS = 9
SAME = 1e-4  # relative difference that rounding explains
STATES = {
    "healthy": "green", "untrained": "cyan", "suspicious": "yellow", "collapsing": "yellow", "collapsed": "red",
    "broken": "red", "unknown": "cyan",
}  # fmt: skip
SEVERITY = {"severe": "red", "warning": "yellow", "note": "cyan"}


def as_text(diagnosis: Diagnosis, width: int = 80) -> str:
    """The table, the findings and the verdict as plain text."""
    file = io.StringIO()
    console = Console(file=file, width=width, no_color=True, force_terminal=False)
    for piece in as_rich(diagnosis):
        console.print(piece, highlight=False, soft_wrap=isinstance(piece, Line))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def as_rich(diagnosis: Diagnosis, before: Diagnosis | None = None) -> list[RenderableType]:
    """The text of a diagnosis as coloured renderables of rich. With an earlier one, the table shows differences."""
    images, verdict = diagnosis.images, diagnosis.conclusion
    skipped = f", {len(images.skipped)} skipped" if images.skipped else ""
    count = f"{images.count} image{'s' if images.count != 1 else ''}"
    head = f"[bold]{escape(diagnosis.model.name)}[/bold] on {count} from {escape(images.source)}{skipped}"
    columns = _columns(diagnosis, before)
    pieces: list[RenderableType] = [*_weights(diagnosis), Text.from_markup(head), _table(diagnosis, before, columns)]
    pieces += _legend(diagnosis, columns)
    pieces += [Text(f"skipped {name}: {reason}", style="dim") for name, reason in list(images.skipped.items())[:5]]
    for finding in diagnosis.findings:
        pieces += _finding(finding)
    style = STATES.get(verdict.state, "cyan")
    pieces.append(Text.assemble(("Verdict: ", "bold"), (verdict.state, f"bold {style}"), f". {verdict.text}"))
    for title, text in (
        ("Levels", verdict.levels), ("Trends", verdict.trends), ("Harm to accuracy", verdict.harm),
        ("Caveat", verdict.caveat),
    ):  # fmt: skip
        if text:
            pieces.append(_indented(f"{title}: {text.rstrip('.')}."))
    for number, step in enumerate(verdict.steps, 1):
        pieces.append(Text.assemble(("Next: " if number == 1 else "Then: ", "bold"), step.text))
        pieces += [Line(f"    {line}", style="cyan") for line in (step.command, step.python) if line]
    if verdict.would_change:
        pieces.append(Text.assemble(("The verdict would change to ", "bold"), "; ".join(verdict.would_change), "."))
    return pieces


class Line(Text):
    """A line to be copied, which is not wrapped."""


def _weights(diagnosis: Diagnosis) -> list[RenderableType]:
    """The weights, first of all if there are none."""
    weights = diagnosis.model.weights
    if weights is None:
        return []
    if weights.kind == "none":
        text = "No weights were loaded: this is the architecture at random initialisation."
        return [Text(text, style="bold yellow")]
    return [Text(str(weights), style="dim")]


def _columns(diagnosis: Diagnosis, before: Diagnosis | None) -> dict[tuple[str, str], str]:
    """Vital and part of each column, with its heading."""
    vitals = diagnosis.vitals
    decided = deciding_vitals([diagnosis])
    columns = {
        (key, part): title for (key, part), title in COLUMNS.items() if key in vitals and part in vitals[key].parts
    }
    if not columns:
        columns = {(key, vital.main): vital.title for key, vital in vitals.items() if vital.main in vital.parts}
    most = MOST_COLUMNS if before is None else (MOST_COLUMNS + 1) // 2
    probe = vitals["depth_probe"].parts.get("", []) if "depth_probe" in vitals else []
    most -= 2 if any(probe) and before is None else 1 if any(probe) else 0
    columns = dict(sorted(columns.items(), key=lambda item: item[0][0] not in decided)[:most])
    if any(probe):
        images = max(spread.images for spread in probe if spread is not None)
        columns[PROBE] = f"probe, 95 %\nof {images} images"
    return columns


def _legend(diagnosis: Diagnosis, columns: dict[tuple[str, str], str]) -> list[RenderableType]:
    """Legend of the column headings."""
    said = []
    for (key, part), heading in columns.items():
        title, short = diagnosis.vitals[key].title, heading.replace("\n/", "/").replace("\n", " ")
        full = f"{title} ({part})" if part else title
        if full != short:
            said.append(f"{short}: {full}")
    return [Text("; ".join(said) + ".", style="dim")] if said else []


def _table(diagnosis: Diagnosis, before: Diagnosis | None, columns: dict[tuple[str, str], str]) -> WideTable:
    vitals, verdict = diagnosis.vitals, diagnosis.conclusion
    table = WideTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("block", justify="right")
    for title in columns.values():
        table.add_column(title, justify="right")
        if before is not None:
            table.add_column("Δ", justify="right")
    marked = verdict.blocks if verdict.state in ("collapsing", "collapsed", "broken") else []
    for b in range(diagnosis.blocks):
        cells = []
        for key, part in columns:
            spread = vitals[key].parts[part][b]
            interval = _interval(vitals[key], b) if (key, part) == PROBE and before is None else ""
            cells.append(_cell(spread) + interval)
            if before is not None:
                cells.append(_difference(before, key, part, b, spread))
        if any(cell != "–" for cell in cells) or b in marked:
            table.add_row(f"{'▸ ' if b in marked else ''}{b}", *cells, style="bold" if b in marked else None)
    return table


def _cell(spread: Spread | None) -> str:
    if spread is None or not isinstance(spread.mean, float):
        return "–"
    return f"{spread.mean:.1f}" if abs(spread.mean) >= 10 else f"{spread.mean:.3f}"


def _interval(probe: VitalResult, block: int) -> str:
    """The interval of an accuracy, if the file has it."""
    ends = [probe.parts[end][block] if end in probe.parts else None for end in ("low", "high")]
    if any(end is None or not isinstance(end.mean, float) for end in ends):
        return ""
    return f" {ends[0].mean:.2f}–{ends[1].mean:.2f}"  # type: ignore[union-attr]


def _difference(before: Diagnosis, key: str, part: str, block: int, spread: Spread | None) -> str:
    """The difference to an earlier diagnosis, "=" if there is none."""
    vital = before.vitals.get(key)
    earlier = vital.parts.get(part, [])[block : block + 1] if vital is not None else []
    if not earlier or (x := earlier[0]) is None or spread is None:
        return "–"
    if not isinstance(x.mean, float) or not isinstance(spread.mean, float):
        return "–"
    delta = spread.mean - x.mean
    if abs(delta) <= SAME * max(abs(x.mean), abs(spread.mean)):
        return "="
    return f"{delta:+.1f}" if abs(spread.mean) >= 10 else f"{delta:+.3f}"


def _finding(finding: Finding) -> list[RenderableType]:
    cause = f" Most likely cause: {finding.why}." if finding.why else ""
    title = (finding.title, f"bold {SEVERITY[finding.severity]}")
    pieces: list[RenderableType] = [
        Text.assemble(title, f" ({blocks_text(finding.blocks)}): ", finding.text, cause),
        *(_indented(f"{evidence.vital}: {evidence.text}{_limit(evidence)}") for evidence in finding.evidence),
    ]
    sources = [f"Limit {e.threshold} from {e.source}." for e in finding.evidence if e.source]
    if finding.severity != "note":
        pieces += [_indented(source) for source in sources]
    for candidate in finding.remedies:
        if not candidate.fits or finding.severity == "note":  # a note needs no action; the report lists all candidates
            continue
        if not candidate.spec:
            pieces.append(_indented(candidate.reason))
            continue
        safety = "safe on pretrained weights" if candidate.safe else "changes the outputs at once"
        pieces.append(_indented(f"try {candidate.spec}: {candidate.reason}; {candidate.effect or safety}"))
    return [*pieces, Text("")]


def _limit(evidence: Evidence) -> str:
    """The limit of a measurement, by how much it is past it, and where the limit comes from."""
    if evidence.limit is None or evidence.margin is None:
        return ""
    side = "past it" if evidence.margin >= 0 else "within it"
    return f"; limit {evidence.limit:.3g} ({evidence.threshold}), {abs(evidence.margin):.2g} {side}"


def _indented(text: str) -> Padding:
    return Padding(Text(text, style="dim"), (0, 0, 0, 4))

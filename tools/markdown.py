"""Helpers that all page generators share."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterable
from pathlib import Path

from unsmooth.report.formatting import subscripts

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RESULTS = ROOT / "results"
NOTE = "<!-- Written by `make docs`. Do not edit: change the code or data it is made from. -->\n"


def page(lines: Iterable[str]) -> str:
    """The text of a generated page: its title, the note that it is generated, the rest."""
    title, *rest = lines
    return f"{title}\n\n{NOTE}" + "\n".join(rest).rstrip() + "\n"


def facts(values: dict[str, str]) -> list[str]:
    """A list of labelled facts, without those that have no value."""
    return [*(f"- **{label}**: {text}" for label, text in values.items() if text and text != "–"), ""]


def table(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """A Markdown table and an empty line, or nothing if there are no rows."""
    body = [f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    columns = list(headings)
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *body, ""] if body else []


def code(text: str) -> str:
    """A formula as code with subscripts, in a table cell, where a pipe must not end the cell."""
    return f"<code>{subscripts(html.escape(text, quote=False)).replace('|', '&#124;')}</code>"


def whole(text: str) -> str:
    """Text in which no line break can occur."""
    return text.replace(" ", "\u00a0")


def prose(text: str) -> str:
    """A docstring as Markdown: indented blocks stay code; outside of code, `<` is escaped and subscripts are set."""
    lines = inspect.cleandoc(text).splitlines()
    return "\n".join(line if line.startswith("    ") else _escape(line) for line in lines)


def _escape(line: str) -> str:
    pieces = re.split(r"(`[^`]*`)", line)
    return "".join(piece if piece.startswith("`") else subscripts(piece.replace("<", "&lt;")) for piece in pieces)


def section(title: str, lines: Iterable[str]) -> list[str]:
    """A heading with its lines, or nothing if there are none."""
    body = list(lines)
    return [f"## {title}", "", *body, *([] if body and body[-1] == "" else [""])] if body else []

"""Numbers, blocks and names as text, and JSON as a page can hold it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

FAMILIES = {
    "similarity": "Similarity of tokens",
    "rank": "Rank of tokens",
    "attention": "Attention maps",
    "signal": "Signal through blocks",
    "function": "Function",
    "theory": "Theory",
}


def number(value: Any, digits: int = 5) -> float | None:
    """A finite number with few digits, or None. Pages are full of numbers, and nobody reads the sixth digit."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def show(value: Any) -> str:
    """A number for people: three digits, no exponent where it can be helped."""
    x = number(value, 3)
    if x is None:
        return "–"
    if x != 0 and not 1e-3 <= abs(x) < 1e6:
        mantissa, exponent = f"{x:.1e}".split("e")
        return f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPT)}".replace("-", "−")
    places = 0 if x == 0 else max(0, 2 - math.floor(math.log10(abs(x))))
    return f"{x:.{places}f}".replace("-", "−")


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def ranges(blocks: Iterable[Any]) -> str:
    """0, 1, 2, 3, 5 → "0–3, 5"."""
    runs: list[list[int]] = []
    for block in sorted({int(b) for b in blocks}):
        if runs and block == runs[-1][1] + 1:
            runs[-1][1] = block
        else:
            runs.append([block, block])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def unbroken(text: str) -> str:
    """Text whose ranges of numbers are not broken over two lines."""
    return re.sub(r"(?<=\d)–(?=\d)", "\u2060–\u2060", text)


def in_blocks(blocks: Iterable[Any]) -> str:
    """ "block 3", "blocks 0–3, 5" or nothing."""
    text = ranges(blocks)
    return f"block{'' if text.isdigit() else 's'} {text}" if text else ""


def labels(diagnoses: list[dict[str, Any]]) -> list[str]:
    """A name for each model; those that share one are numbered."""
    names = [str(d["model"]["name"]) for d in diagnoses]
    shared, seen = Counter(names), Counter[str]()
    out = []
    for name in names:
        seen[name] += 1
        out.append(f"{name} #{seen[name]}" if shared[name] > 1 else name)
    return out


def letter(index: int) -> str:
    """What a model is called where its name is too long."""
    return chr(ord("A") + index) if index < 26 else str(index + 1)


def part_label(part: str, main: str = "") -> str:
    """What a part is called in a list of choices: "" → "overall", "share.heads" → "share, by head"."""
    pieces = ["by head" if piece == "heads" else piece for piece in part.split(".") if piece]
    return ", ".join(pieces) or ("overall" if main == "" else "whole")


def part_meaning(part: str, meaning: dict[str, str]) -> str:
    """What a part means, put together from what its pieces mean."""
    if part in meaning:
        return str(meaning[part])
    return "; ".join(str(meaning[piece]) for piece in part.split(".") if piece in meaning)


def paragraphs(text: str) -> list[tuple[str, str]]:
    """A docstring as paragraphs: ("formula", indented lines as they are) or ("text", lines joined)."""
    out = []
    for chunk in text.split("\n\n"):
        lines = [line for line in chunk.split("\n") if line.strip()]
        if lines and all(line.startswith("    ") for line in lines):
            out.append(("formula", "\n".join(" ".join(line.split()) for line in lines)))
        elif lines:
            out.append(("text", " ".join(line.strip() for line in lines)))
    return out


def script_json(value: Any) -> Markup:
    """JSON that can stand in a script element: nothing in it can end the element or a line of a script."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def thousands(count: Any) -> str:
    """1234567 → "1,234,567"."""
    return "–" if number(count) is None else f"{count:,.0f}".replace("-", "−")


def fixed(value: Any, places: int, sign: bool = False) -> str:
    """A number with so many decimals, and its sign if that matters."""
    x = number(value, 12)
    return "–" if x is None else f"{x:{'+' if sign else ''}.{places}f}".replace("-", "−")


def duration(seconds: Any) -> str:
    """4.2 → "4.2 s", 75 → "1 min 15 s", 3700 → "1 h 2 min"."""
    x = number(seconds, 12)
    if x is None:
        return "–"
    if x < 59.95:
        return f"{x:.1f} s"
    minutes, rest = divmod(round(x), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def setting(value: Any) -> str:
    """A field of a recipe as one would write it down."""
    if isinstance(value, list | tuple):
        return ", ".join(setting(v) for v in value)
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.5g}" if isinstance(value, float) else str(value)

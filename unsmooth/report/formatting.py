"""Text for reports: numbers, blocks and names; and JSON inside a script element."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

FAMILIES = {
    "limits": "Past a limit",
    "similarity": "Token similarity",
    "rank": "Token rank",
    "attention": "Attention maps",
    "signal": "Signal through blocks",
    "function": "Representation",
    "theory": "Theory",
}


def number(value: Any, digits: int = 5) -> float | None:
    """A finite number with this many significant digits, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def show(value: Any) -> str:
    """A number with three significant digits, with an exponent only for very small and very large ones."""
    x = number(value, 3)
    if x is None:
        return "–"
    if x != 0 and not 1e-3 <= abs(x) < 1e6:
        mantissa, exponent = f"{x:.1e}".split("e")
        return f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPT)}".replace("-", "−")
    places = 0 if x == 0 else max(0, 2 - math.floor(math.log10(abs(x))))
    return f"{x:.{places}f}".replace("-", "−")


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def unbroken(text: str) -> str:
    """Text in which no line break can occur inside a range of numbers, or before a unit."""
    text = re.sub(r"(?<=\d) (?=%)", "\u00a0", text)
    return re.sub(r"(?<=\d)–(?=\d)", "\u2060–\u2060", text)


def unique_names(names: Iterable[str]) -> list[str]:
    """Names in which repeated ones are numbered: a #1, b, a #2."""
    names = list(names)
    count, seen = Counter(names), Counter[str]()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(f"{name} #{seen[name]}" if count[name] > 1 else name)
    return unique


def letter(index: int) -> str:
    """A letter that stands for a model in charts."""
    return chr(ord("A") + index) if index < 26 else str(index + 1)


def part_label(part: str) -> str:
    """Label of a part in a menu: "" → "overall", "share.heads" → "share, by head"."""
    pieces = ["by head" if piece == "heads" else piece for piece in part.split(".") if piece]
    return ", ".join(pieces) or "overall"


def part_meaning(part: str, meaning: dict[str, str]) -> str:
    """Description of a part, from the descriptions of its pieces."""
    if part in meaning:
        return str(meaning[part])
    return "; ".join(str(meaning[piece]) for piece in part.split(".") if piece in meaning)


def subscripts(text: str) -> str:
    """Escaped text with X_l, Σ_{i<j} and ‖X‖_F as `<sub>` elements."""
    below = r"_(?:\{([^}]*)\}|(⌈[^⌉]*⌉|:,\w|[A-Za-z0-9]{1,3}(?![A-Za-z0-9_])))"
    return re.sub(below, lambda m: f"<sub>{m[1] or m[2]}</sub>", text)


def paragraphs(text: str) -> list[tuple[str, str]]:
    """Paragraphs of a docstring: ("formula", indented lines) or ("text", joined lines)."""
    out = []
    for chunk in text.split("\n\n"):
        lines = [line for line in chunk.split("\n") if line.strip()]
        if lines and all(line.startswith("    ") for line in lines):
            out.append(("formula", "\n".join(" ".join(line.split()) for line in lines)))
        elif lines:
            out.append(("text", " ".join(line.strip() for line in lines)))
    return out


def script_json(value: Any) -> Markup:
    """JSON for a script element: no character in it can end the element or a line."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def thousands(count: Any) -> str:
    """1234567 → "1,234,567"."""
    return "–" if number(count) is None else f"{count:,.0f}".replace("-", "−")


def fixed(value: Any, places: int, sign: bool = False) -> str:
    """A number with this many decimals, and with its sign if `sign`."""
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
    """A field of a recipe as text."""
    if isinstance(value, list | tuple):
        return ", ".join(setting(v) for v in value)
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.5g}" if isinstance(value, float) else str(value)

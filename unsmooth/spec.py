"""Model specs: one string that names a host and its remedies.

    HOST(option=value, …)+remedy(option=value, …)+remedy

HOST is a timm name, `hf:ID`, `hf:TYPE` or `torchvision:NAME`. Values are numbers, true, false, none,
bare words, quoted strings, or lists in square brackets. Remedies apply from left to right. Every remedy
also takes `blocks`, the slice of blocks that it is restricted to: `attn_scale(blocks=6:)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from unsmooth.errors import UnsmoothError

_NAME_END = "(+"
_NOT_IN_NAME = re.compile(r"[)\[\],=]")
_BARE = re.compile(r"[^\s,()+\[\]=\"']+")
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
_WRITABLE = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class SpecItem:
    """A name with its options: a host, or a remedy."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return f"{self.name}({', '.join(f'{k}={_write(v)}' for k, v in self.options.items())})"

    @property
    def writable(self) -> bool:
        """Whether its string says all of it: a class or a function as an option cannot be written."""
        return all(_writable(value) for value in self.options.values())


@dataclass(frozen=True)
class ModelSpec:
    """A host (None where unknown: the model was not built from a spec) and its remedies, in order."""

    host: SpecItem | None
    remedies: tuple[SpecItem, ...] = ()

    def __str__(self) -> str:
        return "+".join(str(part) for part in ([self.host] if self.host else []) + list(self.remedies))


def bare_name(text: str) -> str:
    """A spec without its options, for a line that has to be short."""
    spec = parse(text)
    return "+".join(part.name for part in ([spec.host] if spec.host else []) + list(spec.remedies))


def parse(text: str) -> ModelSpec:
    """Read a whole spec. A mistake is shown in the string, with a caret and what was expected."""
    parts = _Reader(text).parts("a host name")
    return ModelSpec(parts[0], tuple(parts[1:]))


def parse_item(text: str) -> SpecItem:
    """Read one name with its options, such as `context_broadcast(position=mid)`."""
    reader = _Reader(text)
    part = reader.part("a remedy name")
    if reader.peek() == "+":
        reader.fail(reader.at, "one remedy here; apply several one after the other")
    reader.end()
    return part


def _writable(value: Any) -> bool:
    return all(map(_writable, value)) if isinstance(value, list | tuple) else type(value) in _WRITABLE


def _write(value: Any) -> str:
    for word, meaning in _WORDS.items():
        if value is meaning:
            return word
    if isinstance(value, list | tuple):
        return f"[{', '.join(_write(v) for v in value)}]"
    if not isinstance(value, str):
        return repr(value)
    plain = _BARE.fullmatch(value) and _bare(value) == value
    if plain:
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _bare(word: str) -> Any:
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


class _Reader:
    def __init__(self, text: str):
        if not isinstance(text, str):
            raise UnsmoothError(f"expected a spec as a string, such as 'attn_scale', got {type(text).__name__}")
        self.text, self.at = text, 0

    def fail(self, at: int, expected: str) -> NoReturn:
        shown = "".join(char if char.isprintable() else " " for char in self.text)  # the caret needs one line
        raise UnsmoothError(f"cannot read the model spec: expected {expected}\n  {shown}\n  {' ' * at}^")

    def parts(self, first: str) -> list[SpecItem]:
        parts = [self.part(first)]
        while self.peek() == "+":
            self.at += 1
            parts.append(self.part("a remedy name"))
        self.end()
        return parts

    def end(self) -> None:
        if self.at < len(self.text):
            self.fail(self.at, "'+' and a remedy, or the end")

    def part(self, what: str) -> SpecItem:
        self.skip_space()
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in _NAME_END:
            self.at += 1
        name = self.text[start : self.at].rstrip()
        bad = _NOT_IN_NAME.search(name)
        if bad and bad.start():
            self.fail(start + bad.start(), "'(' and options, '+' and a remedy, or the end")
        if bad or not name:
            self.fail(start, what)
        options: dict[str, Any] = {}
        if self.peek() == "(":
            self.at += 1
            while self.peek() != ")":
                self.option(options)
            self.at += 1
            self.skip_space()
        return SpecItem(name, options)

    def option(self, options: dict[str, Any]) -> None:
        self.skip_space()
        start = self.at
        match = re.compile(r"[A-Za-z_]\w*").match(self.text, self.at)
        if not match:
            self.fail(self.at, "an option name, or ')'")
        name, self.at = match.group(), match.end()
        if name in options:
            self.fail(start, f"each option once; {name} is given twice")
        self.skip_space()
        if self.peek() != "=":
            self.fail(self.at, f"'=' and a value for {name}")
        self.at += 1
        options[name] = self.value()
        self.skip_space()
        if self.peek() == ",":
            self.at += 1
            self.skip_space()
        elif self.peek() != ")":
            self.fail(self.at, "',' or ')'")

    def value(self) -> Any:
        self.skip_space()
        if self.peek() == "[":
            return self.list()
        if self.peek() in ("'", '"'):
            return self.quoted()
        match = _BARE.match(self.text, self.at)
        if not match:
            self.fail(self.at, "a value")
        self.at = match.end()
        # 1e+5 and 2.0e-3 are numbers: the plus belongs to the exponent, not to the next remedy.
        exponent = re.compile(r"\+\d+(?=\s*[,)\]])").match(self.text, self.at)
        if exponent and re.fullmatch(r"-?(\d+\.?|\d*\.\d+)[eE]", match.group()):
            self.at = exponent.end()
        return _bare(self.text[match.start() : self.at])

    def list(self) -> list[Any]:
        values: list[Any] = []
        self.at += 1
        while self.peek() != "]":
            values.append(self.value())
            self.skip_space()
            if self.peek() == ",":
                self.at += 1
                self.skip_space()
            elif self.peek() != "]":
                self.fail(self.at, "',' or ']'")
        self.at += 1
        return values

    def quoted(self) -> str:
        quote, start = self.text[self.at], self.at
        match = re.compile(rf"{quote}((?:\\.|[^\\{quote}])*){quote}", re.DOTALL).match(self.text, self.at)
        if not match:
            self.fail(start, f"a closing {quote}")
        self.at = match.end()
        return re.sub(r"\\(.)", r"\1", match.group(1), flags=re.DOTALL)

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def skip_space(self) -> None:
        while self.peek().isspace():
            self.at += 1

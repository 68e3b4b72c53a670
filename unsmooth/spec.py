"""Model specs: one string that names a host and its remedies.

    HOST(option=value, …)+remedy(option=value, …)+remedy

HOST is a timm name, `hf:ID`, `hf:TYPE`, `torchvision:NAME`, `open_clip:NAME`, `torchhub:FOLDER:NAME` or
`FILE.py:FUNCTION`. Values are numbers, true, false, none, bare words, quoted
strings, or lists in square brackets. Remedies are applied from left to right. Every remedy also takes the option
`blocks`, which restricts it to some blocks: `attn_scale(blocks=6:)`.
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
MAX_DEPTH = 8  # of lists in lists
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
_WRITABLE = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class SpecItem:
    """A host or a remedy: a name with options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return f"{self.name}({', '.join(f'{k}={_write(v)}' for k, v in self.options.items())})"

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.options)))  # values may be lists

    @property
    def writable(self) -> bool:
        """Whether its string is complete: an option that is a class or a function cannot be written."""
        return all(_writable(value) for value in self.options.values())

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "options": dict(self.options)}

    @classmethod
    def from_json(cls, values: Any) -> SpecItem:
        item = cls(str(values["name"]), dict(values["options"]))
        if not item.writable:
            raise ValueError(f"options of {item.name} must be numbers, words or lists")
        return item


@dataclass(frozen=True)
class ModelSpec:
    """A host and its remedies, in order. The host is None if unknown: the model was not built from a spec."""

    host: SpecItem | None
    remedies: tuple[SpecItem, ...] = ()

    def __str__(self) -> str:
        return "+".join(map(str, self.items))

    @property
    def known_host(self) -> SpecItem:
        """The host. A spec without one raises."""
        if self.host is None:
            raise UnsmoothError(f"the spec {str(self)!r} has no host. Use HOST+{self}.")
        return self.host

    @property
    def items(self) -> tuple[SpecItem, ...]:
        """The host, if known, and the remedies."""
        return (*([self.host] if self.host else []), *self.remedies)

    @property
    def bare_name(self) -> str:
        """The spec without options, for display."""
        return "+".join(item.name for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """The spec as JSON values, with its string for people."""
        host = None if self.host is None else self.host.to_json()
        return {"spec": str(self), "host": host, "remedies": [remedy.to_json() for remedy in self.remedies]}

    @classmethod
    def from_json(cls, values: Any) -> ModelSpec:
        """The spec from what `to_json` returns. Other values raise KeyError, TypeError or ValueError."""
        host = values["host"]
        return cls(SpecItem.from_json(host) if host else None, tuple(map(SpecItem.from_json, values["remedies"])))


def bare_name(text: str | ModelSpec) -> str:
    """A spec without options, for display."""
    return parse(text).bare_name


def parse(text: str | ModelSpec) -> ModelSpec:
    """Parse a model spec; a parsed one is returned as it is.

    An error shows the position of the mistake with a caret, and what was expected.
    """
    if isinstance(text, ModelSpec):
        return text
    host, *remedies = _Reader(text).items("a host name")
    return ModelSpec(host, tuple(remedies))


def parse_remedies(text: str) -> tuple[SpecItem, ...]:
    """Parse remedies without a host, such as `attn_scale+feat_scale`; none if the text is empty."""
    return tuple(_Reader(text).items("a remedy name")) if text else ()


def parse_item(text: str) -> SpecItem:
    """Parse one name with options, such as `context_broadcast(position=mid)`."""
    reader = _Reader(text)
    item = reader.item("a remedy name")
    if reader.peek() == "+":
        reader.fail(reader.position, "one remedy; apply several one after the other")
    reader.end()
    return item


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
    """A recursive descent parser of specs."""

    def __init__(self, text: str):
        if not isinstance(text, str):
            raise UnsmoothError(f"expected a spec as a string, such as 'attn_scale', got {type(text).__name__}")
        self.text, self.position, self.depth = text, 0, 0

    def fail(self, position: int, expected: str) -> NoReturn:
        shown = "".join(char if char.isprintable() else " " for char in self.text)  # the caret needs one line
        raise UnsmoothError(f"cannot read the model spec: expected {expected}\n  {shown}\n  {' ' * position}^")

    def items(self, first: str) -> list[SpecItem]:
        items = [self.item(first)]
        while self.peek() == "+":
            self.position += 1
            items.append(self.item("a remedy name"))
        self.end()
        return items

    def end(self) -> None:
        if self.position < len(self.text):
            self.fail(self.position, "'+' and a remedy, or the end")

    def item(self, expected: str) -> SpecItem:
        self.skip_space()
        start = self.position
        while self.position < len(self.text) and self.text[self.position] not in _NAME_END:
            self.position += 1
        name = self.text[start : self.position].rstrip()
        bad = _NOT_IN_NAME.search(name)
        if bad and bad.start():
            self.fail(start + bad.start(), "'(' and options, '+' and a remedy, or the end")
        if bad or not name:
            self.fail(start, expected)
        options: dict[str, Any] = {}
        if self.peek() == "(":
            self.position += 1
            while self.peek() != ")":
                self.option(options)
            self.position += 1
            self.skip_space()
        return SpecItem(name, options)

    def option(self, options: dict[str, Any]) -> None:
        self.skip_space()
        start = self.position
        match = re.compile(r"[A-Za-z_]\w*").match(self.text, self.position)
        if not match:
            self.fail(self.position, "an option name, or ')'")
        name, self.position = match.group(), match.end()
        if name in options:
            self.fail(start, f"each option once; {name} is given twice")
        self.skip_space()
        if self.peek() != "=":
            self.fail(self.position, f"'=' and a value for {name}")
        self.position += 1
        options[name] = self.value()
        self.skip_space()
        if self.peek() == ",":
            self.position += 1
            self.skip_space()
        elif self.peek() != ")":
            self.fail(self.position, "',' or ')'")

    def value(self) -> Any:
        self.skip_space()
        if self.peek() == "[":
            return self.list()
        if self.peek() in ("'", '"'):
            return self.quoted()
        match = _BARE.match(self.text, self.position)
        if not match:
            self.fail(self.position, "a value")
        self.position = match.end()
        # 1e+5 and 2.0e-3 are numbers: the plus belongs to the exponent, not to the next remedy.
        exponent = re.compile(r"\+\d+(?=\s*[,)\]])").match(self.text, self.position)
        if exponent and re.fullmatch(r"-?(\d+\.?|\d*\.\d+)[eE]", match.group()):
            self.position = exponent.end()
        return _bare(self.text[match.start() : self.position])

    def list(self) -> list[Any]:
        values: list[Any] = []
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(self.position, f"at most {MAX_DEPTH} lists inside each other")
        self.position += 1
        while self.peek() != "]":
            values.append(self.value())
            self.skip_space()
            if self.peek() == ",":
                self.position += 1
                self.skip_space()
            elif self.peek() != "]":
                self.fail(self.position, "',' or ']'")
        self.position += 1
        self.depth -= 1
        return values

    def quoted(self) -> str:
        quote, start = self.text[self.position], self.position
        match = re.compile(rf"{quote}((?:\\.|[^\\{quote}])*){quote}", re.DOTALL).match(self.text, self.position)
        if not match:
            self.fail(start, f"a closing {quote}")
        self.position = match.end()
        return re.sub(r"\\(.)", r"\1", match.group(1), flags=re.DOTALL)

    def peek(self) -> str:
        return self.text[self.position] if self.position < len(self.text) else ""

    def skip_space(self) -> None:
        while self.peek().isspace():
            self.position += 1

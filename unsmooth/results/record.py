"""Base of all results: typed values that are written to JSON and read back without loss.

    @record
    class Finding:
        key: str
        blocks: list[int]

    @record
    class Diagnosis(Result):
        kind = "diagnosis"
        findings: list[Finding]

A record is a dataclass whose fields are checked when it is read. `docs/schemas/` holds the JSON schema of each result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.rendering import renderer
from unsmooth.utils.files import write
from unsmooth.utils.notebook import REPORT_HEIGHT, packed_frame

FORMAT = 1
INTEGER_BITS = 63
T = TypeVar("T")
_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, populate_by_name=True)


@dataclass_transform(field_specifiers=(Field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a dataclass that pydantic reads and writes. Unknown fields, NaN and infinity are errors."""
    checked: Any = pydantic_dataclass(config=_CONFIG)(cls)
    return checked


def plain_values(value: Any) -> dict[str, Any]:
    """A record as plain values for JSON."""
    return _adapter(type(value)).dump_python(value, mode="json", by_alias=True)


def read_record(cls: type[T], values: Any) -> T:
    """The record of plain values; raises ValueError if they are not valid."""
    checked: T = _adapter(cls).validate_python(values)
    return checked


def if_set(default: Any = None) -> Any:
    """A field that the JSON file omits while it has its default."""
    return Field(default=default, exclude_if=lambda value: value == default)


def named(items: Mapping[Any, T], key: Any, what: str, owner: str) -> T:
    """The item of a key. Raises `UnsmoothError`, which lists the keys, if there is none."""
    if key in items:
        return items[key]
    raise unknown(what, _shown(key), map(_shown, items), owner=owner)


def _shown(key: Any) -> str:
    return "/".join(map(str, key)) if isinstance(key, tuple) else str(key)


def stored_as(key: str) -> Any:
    """A field whose key in the JSON file differs from its name."""
    return Field(validation_alias=key, serialization_alias=key)


class Result:
    """Base of results that are saved as JSON: `Diagnosis`, `TrainingResult`, `Trial` and others."""

    kind: ClassVar[str]
    command: ClassVar[str]  # the command that writes it

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to plain values, as in the JSON file."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            **plain_values(self),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """Convert the result to JSON.

        Args:
            path: File to write. Default: none.

        Returns:
            The JSON text.

        Raises:
            UnsmoothError: If the file cannot be written.
        """
        text = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if path is not None:
            write(Path(path), text)
        return text

    @classmethod
    def from_dict(cls, values: Any, source: str = "") -> Self:
        """Restore a result from plain values.

        Args:
            values: Content of the JSON file.
            source: Name of the values in error messages.

        Returns:
            The result.

        Raises:
            UnsmoothError: If the values are of another kind or format, or not valid.
        """
        where = source or f"this {cls.kind}"
        if not isinstance(values, dict) or values.get("kind") != cls.kind:
            raise UnsmoothError(f"{where} is not a {cls.kind}. Use a file written by `{cls.command}`.")
        if values.get("format") != FORMAT:
            raise UnsmoothError(
                f"{where} has format {values.get('format')!r}; this version of unsmooth reads format {FORMAT}."
            )
        fields = {name: value for name, value in values.items() if name not in ("format", "kind")}
        try:
            if (huge := _huge_integer(fields)) is not None:
                raise UnsmoothError(f"{where} is not a valid {cls.kind}: a number has {huge} bits.")
            return read_record(cls, fields)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, problem["loc"]))
            raise UnsmoothError(f"{where} is not a valid {cls.kind}: {place}: {problem['msg']}.") from None
        except RecursionError:
            raise UnsmoothError(f"{where} is not a valid {cls.kind}: it is nested too deeply.") from None

    @classmethod
    def from_json(cls, path: str | Path) -> Self:
        """Read a result from a file that `to_json` wrote.

        Args:
            path: JSON file.

        Returns:
            The result.

        Raises:
            UnsmoothError: If the file cannot be read, is of another kind or format, or is not valid.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UnsmoothError(f"cannot read the {cls.kind} in {path}: {reason}") from error
        return cls.from_dict(values, str(path))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema of the file."""
        schema = _adapter(cls).json_schema()
        inner = {result.__name__: result for result in Result.__subclasses__()}
        for name, definition in schema.get("$defs", {}).items():
            if name in inner:  # a result within a result
                _add_constants(definition, inner[name].kind)
        return _add_constants(schema, cls.kind)


class Reported:
    """Base of results with a page and one main figure: `Trial`, `Prescription`."""

    def save(self, path: str | Path) -> None:
        """Write a report page (.html), or the figure of differences or of the search (.png, .svg, .pdf).

        Args:
            path: File to write. Its suffix selects the format.

        Raises:
            UnsmoothError: If the format is not supported or the file cannot be written.
        """
        path = Path(path)
        write(path, renderer().report(self, path.suffix.lstrip(".").lower()))

    def _repr_html_(self) -> str:
        """The report in a frame, for notebooks."""
        return packed_frame(renderer().report(self, "html").decode(), REPORT_HEIGHT)


def _huge_integer(value: Any) -> int | None:
    """The number of bits of an integer that no count in a result has, if there is one."""
    if isinstance(value, int):
        return value.bit_length() if value.bit_length() > INTEGER_BITS else None
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((bits for item in items if (bits := _huge_integer(item)) is not None), None)


def _add_constants(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    """Add the format and the kind, which are not fields of the class, to a schema."""
    constants = {"format": {"const": FORMAT}, "kind": {"const": kind}}
    schema["properties"] = {**constants, **schema["properties"]}
    schema["required"] = [*constants, *schema.get("required", [])]
    return schema


def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)  # pydantic keeps the validator on the class, so this is cheap

"""Options as values: one declaration drives Python, the command line, TOML files, specs and the docs.

    @options
    class NoSkipOptions:
        branch: Literal["attn", "mlp", "both"] = option("branch whose skip is dropped", default="attn")

    NoSkipOptions(branch="mlp")                                 # checked, frozen, keyword-only
    read_options(NoSkipOptions, {"branch": "mlp"}, "no_skip")   # from a spec, TOML or JSON
    read_texts(NoSkipOptions, {"branch": "mlp"}, "no_skip")     # from the command line, where all values are text
    read_text_values(NoSkipOptions, {"branch": "mlp"}, "no_skip")   # the same, only the values that are named
    describe(NoSkipOptions)                                     # name, type, default, range and help of each option

Invalid values raise `UnsmoothError` with the value and what is allowed; similar names are suggested.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.fields import FieldInfo

from unsmooth.errors import UnsmoothError, suggestion, unknown

T = TypeVar("T")
_CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
_KINDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path",
    tuple: "numbers, separated by commas",
}  # fmt: skip


def _numbers(value: Any) -> Any:
    """`0.5,1` from the command line and `[0.5, 1]` from TOML as a tuple."""
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(parts, int | float) and not isinstance(parts, bool):
        parts = (parts,)
    return tuple(float(part) for part in parts) if isinstance(parts, Iterable) else parts


def _path(value: Any) -> Any:
    return Path(value) if isinstance(value, str) else value


def _path_text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _device_name(value: Any) -> Any:
    """A `torch.device` as text, without importing torch."""
    return str(value) if type(value).__module__ == "torch" else value


Pair = Annotated[tuple[float, float], BeforeValidator(_numbers)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(_numbers)]
FilePath = Annotated[Path, BeforeValidator(_path)]
DataText = Annotated[str, BeforeValidator(_path_text)]  # a path or a dataset name
Device = Annotated[str, BeforeValidator(_device_name)]
Amp = Literal["none", "auto", "bfloat16", "float16"]  # precision of autocast


def option(
    help: str, *, default: Any, low: float | None = None, high: float | None = None, above: float | None = None
) -> Any:
    """One option of an `options` class: its default, its help text and its range (`above` excludes the bound)."""
    return Field(default=default, description=help, ge=low, le=high, gt=above)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, Field))
def options(cls: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass whose values are checked; bad ones raise `UnsmoothError`."""
    made: Any = pydantic_dataclass(frozen=True, kw_only=True, config=_CONFIG)(cls)
    checked = made.__init__

    def __init__(self: Any, **values: Any) -> None:
        try:
            checked(self, **values)
        except ValidationError as error:
            raise UnsmoothError(
                _explain(type(self), error, getattr(type(self), "label", type(self).__name__))
            ) from None

    made.__init__, made.__checked_init__ = __init__, checked
    return made


def read_options(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Options from values that have their types already: a spec, a TOML or a JSON file. `where` starts the error."""
    _check_names(cls, values, where)
    made = cls.__new__(cls)
    try:
        made.__checked_init__(**values)  # type: ignore[attr-defined]
    except ValidationError as error:
        raise UnsmoothError(_explain(cls, error, where)) from None
    return made


def read_texts(cls: type[T], values: Mapping[str, str], where: str) -> T:
    """Options from text, as the command line has it: `true`, `0.5`, `0.5,1`."""
    _check_names(cls, values, where)
    try:
        return TypeAdapter(cls).validate_python(dict(values), strict=False)
    except ValidationError as error:
        raise UnsmoothError(_explain(cls, error, where)) from None


def read_text_values(cls: type, values: Mapping[str, str], where: str) -> dict[str, Any]:
    """Values of some options from text, each checked by itself, because the others are known later (recipe fields)."""
    _check_names(cls, values, where)
    hints = get_type_hints(cls, include_extras=True)
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    typed = {}
    for name, text in values.items():
        declared = defaults[name]
        hint: Any = Annotated[hints[name], declared] if isinstance(declared, FieldInfo) else hints[name]
        try:
            typed[name] = TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False)).validate_python(text, strict=False)
        except ValidationError as error:
            raise UnsmoothError(_explain(cls, error, where, name)) from None
    return typed


def _check_names(cls: type, values: Mapping[str, Any], where: str) -> None:
    names = [field.name for field in dataclasses.fields(cls)]
    for name in values:
        if name not in names:
            raise unknown("option", name, names, owner=where)


def to_json(value: Any) -> dict[str, Any]:
    """Options as plain values for JSON or TOML."""
    return TypeAdapter(type(value)).dump_python(value, mode="json")


@dataclasses.dataclass(frozen=True)
class OptionInfo:
    """Description of one option, for help texts and docs."""

    name: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...]
    range: str
    optional: bool


def describe(cls: type) -> list[OptionInfo]:
    """Every option of a class, in order."""
    hints = get_type_hints(cls)
    infos = []
    for field in dataclasses.fields(cls):
        info = field.default if isinstance(field.default, FieldInfo) else None
        default = info.default if info is not None else field.default
        kind, choices, optional = _kind(hints[field.name])
        infos.append(
            OptionInfo(
                field.name, kind, default, (info.description or "") if info else "", choices,
                _range(info) if info else "", optional,
            )
        )  # fmt: skip
    return infos


def _kind(hint: Any) -> tuple[type, tuple[str, ...], bool]:
    """The plain type of an annotation, the words that it allows, and whether None is one of its values."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) is Union or type(hint).__name__ == "UnionType":
        inner = [part for part in get_args(hint) if part is not type(None)]
        kind, choices, _ = _kind(inner[0])
        return kind, choices, len(inner) < len(get_args(hint))
    if get_origin(hint) is Literal:
        return str, tuple(map(str, get_args(hint))), False
    return (get_origin(hint) or hint), (), False


def _range(info: FieldInfo) -> str:
    words = {"ge": "at least {:g}", "gt": "above {:g}", "le": "at most {:g}", "lt": "below {:g}"}
    bounds = {name: getattr(part, name) for part in info.metadata for name in words if hasattr(part, name)}
    return " and ".join(words[name].format(bound) for name, bound in bounds.items())


def _explain(cls: type, error: ValidationError, where: str, name: str = "") -> str:
    """One line about the first invalid value: what is required, and what was given."""
    problem = error.errors()[0]
    if not name:
        name = str(problem["loc"][0]) if problem["loc"] else ""
    known = {one.name: one for one in describe(cls)}
    if name not in known:
        if problem["type"] == "unexpected_keyword_argument":
            return str(unknown("option", name, list(known), owner=where))
        context = problem.get("ctx", {}).get("error")
        return f"{where}: {context if context is not None else problem['msg']}"
    one, given = known[name], problem["input"]
    if one.choices:
        hint = suggestion(str(given), one.choices)
        return f"{where}: {name} must be one of {', '.join(one.choices)} (got {given!r}).{hint}"
    in_range = one.range and problem["type"].startswith(("greater", "less"))
    wanted = one.range if in_range else _KINDS.get(one.kind, one.kind.__name__)
    if problem["type"] == "finite_number":
        wanted = "finite"
    return f"{where}: {name} must be {wanted} (got {given!r})"


def merge_options(cls: type[T], base: T | None, fields: Mapping[str, Any], where: str) -> T:
    """`base` (default: the defaults of `cls`) with some fields replaced. Every field is checked."""
    if base is None:
        return read_options(cls, fields, where)
    _check_names(cls, fields, where)
    return dataclasses.replace(base, **fields)  # type: ignore[type-var]

"""Settings classes as options of a command.

    @takes_settings(TrainSettings)
    def train(context: Context, spec: …, *, settings: TrainSettings) -> None: …

Every field of the class becomes an option `--field`. Values are read by `unsmooth.utils.options` and by nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from unsmooth.utils.options import OptionInfo, describe, read_texts

DATA, DIR, INT = "DATA", "DIR", "INT"
_METAVARS = {int: INT, float: "FLOAT", str: "TEXT", Path: "PATH", tuple: "NUMBERS"}
_NAMED = {
    "data": DATA, "val_data": DATA, "tokens": DATA, "data_dir": DIR, "out": DIR, "vitals": "NAMES", "blocks": "BLOCKS",
    "device": "DEVICE", "spec": "SPEC", "only": "GROUP",
}  # fmt: skip

TrainingData = Annotated[
    str, Option(metavar=DATA, help="training and validation images: a folder, an .npz file or a timm dataset")
]
RecipeName = Annotated[
    str, Option(metavar="RECIPE", show_default=False, help="recipe name or .toml file (default: small)")
]
Command = Callable[..., None]


def takes_settings(
    cls: type, *, without: Collection[str] = (), names: Mapping[str, str] | None = None
) -> Callable[[Command], Command]:
    """Add the fields of an options class to a command, which receives an instance as `settings`.

    Args:
        cls: A class made by `unsmooth.utils.options.options`.
        without: Fields that the command sets itself.
        names: Names of options that differ from the names of their fields.
    """
    infos = [info for info in describe(cls) if info.name not in without]
    infos.sort(key=lambda info: info.name not in inspect.get_annotations(cls))  # inherited options last

    def decorate(function: Command) -> Command:
        def command(**values: Any) -> None:
            texts = {info.name: values.pop(info.name) for info in infos}
            texts = {name: str(text) for name, text in texts.items() if text is not None}
            function(**values, settings=read_texts(cls, texts, getattr(cls, "label", cls.__name__)))

        own = inspect.signature(function, eval_str=True).parameters.values()
        added = [_parameter(info, (names or {}).get(info.name, info.name)) for info in infos]
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for before in own
            for parameter in (added if before.name == "settings" else [before])
        ]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(info: OptionInfo, name: str) -> inspect.Parameter:
    """A parameter that typer reads as an option; None if the option is not given."""
    flag = f"--{name.replace('_', '-')}"
    annotation: Any
    if info.kind is bool:
        flags = f"{flag}/--no-{flag[2:]}" if info.default else flag
        annotation = Annotated[bool | None, Option(flags, help=_help(info), show_default=False)]
    else:
        metavar = _NAMED.get(info.name, _METAVARS[info.kind])
        annotation = Annotated[str | None, Option(flag, metavar=metavar, help=_help(info), show_default=False)]
    return inspect.Parameter(info.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(info: OptionInfo) -> str:
    """Help text, choices and default, unless the text names the default or there is none."""
    *most, last = info.choices or ("",)
    text = f"{info.help}: {', '.join(most)} or {last}" if info.choices else info.help
    if "default:" in text or info.default is None or info.default is False or info.default in ("", ()):
        return text
    default = "on" if info.default is True else f"{info.default:g}" if info.kind is float else info.default
    return f"{text} (default: {default})"

"""The remedies, one file each. Every file in this folder is imported, which registers its remedy."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from unsmooth.errors import unknown
from unsmooth.remedies.base import REGISTRY, Remedy
from unsmooth.spec import SpecItem
from unsmooth.utils.options import OptionInfo, describe, read_options

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def get(key: str) -> Remedy[Any]:
    """The remedy with that name. An unknown name raises an error that suggests the nearest one."""
    if key not in REGISTRY:
        raise unknown("remedy", key, REGISTRY)
    return REGISTRY[key]


def options_of(item: SpecItem) -> Any:
    """The checked options of a remedy in a spec, an instance of its `Options`; `blocks` is not one of them."""
    remedy = get(item.name)
    return read_options(remedy.Options, {k: v for k, v in item.options.items() if k != "blocks"}, remedy.key)


def list_remedies() -> list[str]:
    """The names of all remedies, sorted.

    Returns:
        Names as `unsmooth.apply` and model specs take them.

    Example:
        >>> import unsmooth
        >>> unsmooth.list_remedies()[:3]
        ['adder', 'adder_attention', 'attention_diversity']
    """
    return sorted(REGISTRY)


def option_text(remedy: Remedy[Any]) -> str:
    """The options of a remedy in one line, each with its default first."""
    return ", ".join(map(_option_text, describe(remedy.Options))) or "–"


def _option_text(option: OptionInfo) -> str:
    if option.choices:
        return f"{option.name}={'|'.join(option.choices)}"
    default = str(option.default).lower() if isinstance(option.default, bool) else option.default
    return option.name if default is None else f"{option.name}={default}"


def start_text(remedy: Remedy[Any]) -> str:
    """Whether the outputs of a pretrained host stay the same, and with which options."""
    if remedy.exact(remedy.Options()):
        nearly = remedy.start_error > Remedy.start_error
        return f"nearly unchanged (to {remedy.start_error:g})" if nearly else "unchanged"
    for option in describe(remedy.Options):
        for value in option.choices or ((1.0,) if option.optional else ()):
            if remedy.exact(remedy.Options(**{option.name: value})):
                shown = f"{value:g}" if isinstance(value, float) else value
                return f"unchanged with {option.name}={shown}"
    return "changed"


def facts(remedy: Remedy[Any]) -> dict[str, str]:
    """Facts of a remedy as labels and texts: the rows of every generated list and table."""
    rows = {
        "options": option_text(remedy),
        "parameters": remedy.parameters,
        "outputs": f"{start_text(remedy)} when applied",
        "fused": remedy.fused,
        "conflicts": ", ".join(remedy.conflicts) or "–",
        "departs": remedy.departures,
        "paper": remedy.paper,
    }
    return {label: text for label, text in rows.items() if text != "–"}

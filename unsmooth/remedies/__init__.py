"""The remedies, one file each. A file added here is registered by being here."""

from __future__ import annotations

import importlib
import pkgutil

from unsmooth.errors import unknown
from unsmooth.remedies.base import REGISTRY, Remedy

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def get(key: str) -> Remedy:
    """The remedy of that name; a name that does not exist is answered with the nearest one."""
    if key not in REGISTRY:
        raise unknown("remedy", key, REGISTRY)
    return REGISTRY[key]


def list_remedies() -> list[str]:
    """The names of all remedies."""
    return sorted(REGISTRY)


def option_text(remedy: Remedy) -> str:
    """A remedy's options in one line, the default first."""
    words = []
    for name, option in remedy.options.items():
        if option.choices:
            words.append(f"{name}={'|'.join(option.choices)}")
        else:
            default = str(option.default).lower() if isinstance(option.default, bool) else option.default
            words.append(name if default is None else f"{name}={default}")
    return ", ".join(words) or "–"


def start_text(remedy: Remedy) -> str:
    """Whether a pretrained host's outputs stay as they are, and under which options."""
    if remedy.exact(remedy.read({})):
        return "unchanged"
    for name, option in remedy.options.items():
        for value in option.choices or ((1.0,) if option.optional else ()):
            if remedy.exact(remedy.read({name: value})):
                return (
                    f"unchanged with {name}={value:g}" if isinstance(value, float) else f"unchanged with {name}={value}"
                )
    return "changed"


def facts(remedy: Remedy) -> dict[str, str]:
    """What a remedy states about itself: the rows of every list and table that is made of the registry."""
    known = {
        "options": option_text(remedy),
        "parameters": remedy.parameters,
        "outputs": f"{start_text(remedy)} at the start",
        "fused": remedy.fused,
        "conflicts": ", ".join(remedy.conflicts) or "–",
        "departs": remedy.departures,
        "paper": remedy.paper,
    }
    return {label: text for label, text in known.items() if text != "–"}

"""The vitals, one file each. A file added here is registered by being here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from unsmooth.errors import unknown
from unsmooth.vitals.base import REGISTRY, Vital

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def get(key: str) -> Vital:
    """The vital of that name; a name that does not exist is answered with the nearest one."""
    if key not in REGISTRY:
        raise unknown("vital", key, (*REGISTRY, "default", "all"))
    return REGISTRY[key]


def list_vitals() -> list[str]:
    """The names of all vitals."""
    return sorted(REGISTRY)


def select(wanted: str | Iterable[str] | None) -> list[Vital]:
    """The vitals that are asked for: names, "default" or "all", in one string with commas or in a list."""
    if wanted is None:
        wanted = "default"
    names = [name.strip() for name in wanted.split(",")] if isinstance(wanted, str) else list(wanted)
    chosen: dict[str, Vital] = {}
    for name in names:
        if name in ("default", "all"):
            chosen |= {key: v for key, v in REGISTRY.items() if v.default or name == "all"}
        else:
            chosen[name] = get(name)
    return list(chosen.values())

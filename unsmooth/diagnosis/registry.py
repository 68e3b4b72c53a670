"""Every vital by its key: those of `vitals/`, and the bounds and spectra of `diagnosis/bounds/`."""

from __future__ import annotations

from collections.abc import Iterable

import unsmooth.diagnosis.bounds
import unsmooth.vitals  # noqa: F401  # importing both registers what they hold
from unsmooth.errors import unknown
from unsmooth.vitals.base import REGISTRY, Vital


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

"""All vitals by name: those of `vitals/`, and the bounds and spectra of `diagnosis/bounds/`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import unsmooth.diagnosis.bounds
import unsmooth.vitals  # noqa: F401  # importing both packages registers their vitals
from unsmooth.errors import unknown
from unsmooth.vitals.base import REGISTRY, Vital

QUICK = ("token_cosine", "high_frequency_ratio", "effective_rank", "attention_entropy", "branch_ratio")
SINKS = (
    "attention_sink", "sink_value_norm", "sink_output", "massive_activations", "outlier_channels", "spectral_gap",
    "output_value_cosine", "value_cosine",
)  # fmt: skip
# Names that stand for several vitals.
GROUPS: dict[str, Callable[[Vital], bool]] = {
    "default": lambda vital: vital.default,
    "quick": lambda vital: vital.key in QUICK,
    "sinks": lambda vital: vital.key in SINKS,
    "theory": lambda vital: vital.family == "theory" and vital.key != "jacobian_spectrum",  # which needs a block
    "all": lambda vital: True,
}


def get(key: str) -> Vital:
    """The vital with this name. An unknown name raises an error that suggests the nearest one."""
    if key not in REGISTRY:
        raise unknown("vital", key, (*REGISTRY, *GROUPS))
    return REGISTRY[key]


def list_vitals() -> list[str]:
    """List the names of all vitals.

    Returns:
        Names, sorted.

    Example:
        >>> import unsmooth
        >>> "token_cosine" in unsmooth.list_vitals()
        True
    """
    return sorted(REGISTRY)


def select(vitals: str | Iterable[str] | None) -> list[Vital]:
    """The vitals with these names, comma-separated or as a list. The names of `GROUPS` stand for several."""
    if vitals is None:
        vitals = "default"
    names = [name.strip() for name in vitals.split(",")] if isinstance(vitals, str) else list(vitals)
    selected: dict[str, Vital] = {}
    for name in names:
        if name in GROUPS:
            selected |= {key: vital for key, vital in REGISTRY.items() if GROUPS[name](vital)}
        else:
            selected[name] = get(name)
    return list(selected.values())

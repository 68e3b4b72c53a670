"""Diagnose and treat token collapse in vision transformers.

Public names are imported on first use, which keeps `import unsmooth` fast.

Example:
    >>> import unsmooth
    >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)")
    >>> plan = unsmooth.apply(model, "attn_scale")
    >>> print(unsmooth.applied(model))
    vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+attn_scale
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unsmooth._version import __version__ as __version__
from unsmooth.rendering import Renderer as _Renderer
from unsmooth.rendering import connect as _connect

if TYPE_CHECKING:
    from unsmooth.diagnosis.diagnose import diagnose
    from unsmooth.diagnosis.push import push
    from unsmooth.diagnosis.registry import list_vitals
    from unsmooth.errors import UnsmoothError
    from unsmooth.evaluation.bench import bench
    from unsmooth.evaluation.evaluate import evaluate
    from unsmooth.monitoring.monitor import Monitor
    from unsmooth.remedies import list_remedies
    from unsmooth.results.diagnosis import Diagnosis
    from unsmooth.surgery.apply import apply, remove
    from unsmooth.surgery.authors import import_checkpoint
    from unsmooth.surgery.auxiliary_loss import auxiliary_loss
    from unsmooth.surgery.create import create_model
    from unsmooth.surgery.fold import fold
    from unsmooth.surgery.plan import plan
    from unsmooth.surgery.record import applied, parts
    from unsmooth.surgery.register_neurons import find_register_neurons
    from unsmooth.surgery.storage import load, save
    from unsmooth.training.run import train
    from unsmooth.trials.compare import compare
    from unsmooth.trials.prescribe import prescribe

# Public name: module that defines it.
_MODULES = {
    "Diagnosis": "results.diagnosis",
    "Monitor": "monitoring.monitor",
    "UnsmoothError": "errors",
    "applied": "surgery.record",
    "apply": "surgery.apply",
    "auxiliary_loss": "surgery.auxiliary_loss",
    "bench": "evaluation.bench",
    "compare": "trials.compare",
    "create_model": "surgery.create",
    "diagnose": "diagnosis.diagnose",
    "evaluate": "evaluation.evaluate",
    "find_register_neurons": "surgery.register_neurons",
    "fold": "surgery.fold",
    "import_checkpoint": "surgery.authors",
    "list_remedies": "remedies",
    "list_vitals": "diagnosis.registry",
    "load": "surgery.storage",
    "parts": "surgery.record",
    "plan": "surgery.plan",
    "prescribe": "trials.prescribe",
    "push": "diagnosis.push",
    "remove": "surgery.apply",
    "save": "surgery.storage",
    "train": "training.run",
}

__all__ = [
    "Diagnosis",
    "Monitor",
    "UnsmoothError",
    "applied",
    "apply",
    "auxiliary_loss",
    "bench",
    "compare",
    "create_model",
    "diagnose",
    "evaluate",
    "find_register_neurons",
    "fold",
    "import_checkpoint",
    "list_remedies",
    "list_vitals",
    "load",
    "parts",
    "plan",
    "prescribe",
    "push",
    "remove",
    "save",
    "train",
]


def _renderer() -> _Renderer:
    from unsmooth.report import renderer

    return renderer


_connect(_renderer)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

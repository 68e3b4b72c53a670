"""Vitals of a whole model: bounds of the papers' theorems with the measured values, and the Jacobian spectrum."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

"""Vitals of a whole model: the bounds of the papers' theorems against measurements, and the Jacobian spectrum."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

"""Hosts that are Python code of the user: `torchhub:FOLDER:NAME` and `FILE.py:FUNCTION`.

Building one runs the code. So `create_host` comes here only for a name that the user gave.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError, unknown

HUB = "torchhub:"
FILE = re.compile(r"(?P<path>.+\.py):(?P<function>\w+)")


def runs_code(name: str) -> bool:
    """Whether a host is Python code of the user, which runs when it is built."""
    return name.startswith(HUB) or FILE.fullmatch(name) is not None


def without_folder(name: str) -> str:
    """The name with the last part of its path only: `torchhub:NAME_OF_FOLDER:NAME`, `FILE.py:FUNCTION`."""
    path, _, function = name.removeprefix(HUB).rpartition(":")
    return f"{HUB if name.startswith(HUB) else ''}{Path(path).name}:{function}"


def run_user_code(name: str, options: Mapping[str, Any]) -> nn.Module:
    """The model that the user's function returns for these options."""
    model = _from_hub(name.removeprefix(HUB), options) if name.startswith(HUB) else _from_file(name, options)
    if not isinstance(model, nn.Module):
        raise UnsmoothError(f"{name} returns {type(model).__name__}, not a PyTorch module.")
    return model


def _from_hub(name: str, options: Mapping[str, Any]) -> Any:
    """A model of the `hubconf.py` in a local folder."""
    folder, _, entry = name.rpartition(":")
    if not (Path(folder) / "hubconf.py").is_file():
        raise UnsmoothError(
            f"there is no {Path(folder) / 'hubconf.py'}. torchhub:FOLDER:NAME takes a local folder: clone it first."
        )
    return torch.hub.load(folder, entry, source="local", **options)


def _from_file(name: str, options: Mapping[str, Any]) -> Any:
    match = FILE.fullmatch(name)
    assert match is not None
    path = Path(match["path"])
    if not path.is_file():
        raise UnsmoothError(f"there is no file {path}. Use FILE.py:FUNCTION with a function that returns a model.")
    spec = importlib.util.spec_from_file_location(f"unsmooth_host_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and copies look for it
    beside = str(path.parent.resolve())
    sys.path.insert(0, beside)  # for imports of files beside it, as when it is run as a script
    try:
        spec.loader.exec_module(module)
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        if match["function"] not in functions:
            raise unknown("function", match["function"], functions, owner=str(path))
        return getattr(module, match["function"])(**options)
    finally:
        sys.path.remove(beside)

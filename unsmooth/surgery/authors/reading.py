"""The weights in a checkpoint file of a training script. Nothing that it holds is executed."""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, unknown
from unsmooth.surgery.storage import WRAPPED, read_weights

# Where the authors' scripts keep weights, and which they measured: DeiT's script keeps an average too and evaluates
# the model itself; timm's keeps and prefers the average.
ENTRIES = ("model", "state_dict_ema", "model_ema", "state_dict")


# Settings that the scripts save beside the weights: a plain object, and in Swin's script a dict of another library,
# which need not be installed. Neither is looked at.
HARMLESS: list[Any] = [argparse.Namespace, (OrderedDict, "yacs.config.CfgNode")]


def weights_of(checkpoint: Mapping[str, Any] | str | Path, entry: str | None = None) -> tuple[dict[str, Tensor], str]:
    """The tensors of a checkpoint by name, without what wrappers put in front of names, and what to call it."""
    if isinstance(checkpoint, Mapping):
        content, where = checkpoint, "this state dict"
    else:
        content, where = _read(Path(checkpoint)), str(checkpoint)
    held = [name for name in ENTRIES if isinstance(content.get(name), Mapping)]
    if entry is not None and entry not in held:
        raise unknown(f"entry of {where}", entry, held)
    if held:
        content = content[entry or held[0]]
    weights = {WRAPPED.sub("", str(name)): value for name, value in content.items() if isinstance(value, Tensor)}
    if not weights:
        raise UnsmoothError(f"{where} holds no weights: expected tensors by name, or under one of {', '.join(ENTRIES)}")
    return weights, where


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise UnsmoothError(f"{path} is no file: a checkpoint is a .pth or .safetensors file")
    if path.suffix == ".safetensors":
        return read_weights(path)
    try:
        with torch.serialization.safe_globals(HARMLESS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # every broken or foreign file has its own
        unsafe = _unsafe_types(path)
        reason = f"torch cannot ({type(error).__name__}: {error})".splitlines()[0]
        if unsafe:
            reason = f"it holds a {unsafe[0]} too, which could run code; save its weights alone, and import those"
        raise UnsmoothError(f"cannot read weights from {path}: {reason}") from error
    if not isinstance(content, Mapping):
        raise UnsmoothError(f"{path} holds {type(content).__name__}, not weights by name")
    return content


def _unsafe_types(path: Path) -> list[str]:
    """The types in a checkpoint file that PyTorch does not load with weights_only."""
    try:
        with torch.serialization.safe_globals(HARMLESS):
            return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # not a file of torch.save
        return []

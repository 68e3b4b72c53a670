"""Checkpoints: the state of a run in one safetensors file, written atomically.

Tensors are stored by name; everything else (numbers, lists, text) is JSON in the metadata of the file. Nothing is
pickled.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unsmooth.errors import UnsmoothError
from unsmooth.utils.files import replace_files

TENSOR = "tensor"  # {TENSOR: name} in the JSON refers to a tensor
STATE, CHECKSUM = "unsmooth_state", "crc32"


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a tree of dicts, lists, tensors, numbers and text atomically."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_pack(state, "", tensors))
    try:
        metadata = {STATE: tree, CHECKSUM: checksum(tree, tensors)}
        replace_files({path: lambda temporary: save_file(tensors, temporary, metadata=metadata)})
    except (OSError, SafetensorError) as error:
        raise UnsmoothError(f"cannot write {path}: {error}. The last good checkpoint is unchanged.") from error


def read_state(path: Path) -> Any:
    """Read the tree that `write_state` wrote."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
            state = _unpack(json.loads(metadata[STATE]), tensors)
            intact = metadata.get(CHECKSUM) in (None, checksum(metadata[STATE], tensors))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UnsmoothError(f"{path} is not a checkpoint of a run ({type(error).__name__}: {error})") from error
    if not intact:
        raise UnsmoothError(
            f"{path} is damaged: its checksum differs. Restore it, or delete {path.parent} to start again."
        )
    return state


def checksum(tree: str, tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 of the JSON, and of the names, types, sizes and bytes of the tensors."""
    crc = zlib.crc32(tree.encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {TENSOR: name}
    if isinstance(value, Mapping):
        # Pairs, since keys may be numbers, which JSON would turn into text.
        return {
            "dict": [[key, _pack(item, f"{name}.{key}" if name else str(key), tensors)] for key, item in value.items()]
        }
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_pack(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsmoothError(f"a checkpoint cannot hold {name} of type {type(value).__name__}. Use another optimizer.")


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == TENSOR:
        return tensors[content]
    if kind == "dict":
        return {key: _unpack(item, tensors) for key, item in content}
    items = [_unpack(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


def finite(state: Mapping[str, Any]) -> bool:
    """Whether every weight of a state dict is finite."""
    norms = [value.abs().max() for value in state.values() if value.is_floating_point() and value.numel()]
    return bool(torch.stack([norm.float().cpu() for norm in norms]).isfinite().all()) if norms else True

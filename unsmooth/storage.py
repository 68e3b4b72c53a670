"""Saves a treated model as safetensors and a recipe, and loads it again. Nothing is pickled or evaluated.

    DIR/model.safetensors    every tensor of the state dict
    DIR/recipe.json          the spec: host, remedies with their options, versions

Both are written to temporary files, synced and renamed, so that a cut never leaves half a checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import unsmooth
from unsmooth.create import create_model
from unsmooth.errors import UnsmoothError
from unsmooth.spec import ModelSpec, Part, parse
from unsmooth.surgery import applied, apply, check_unfolded, record_of, remove

WEIGHTS, RECIPE = "model.safetensors", "recipe.json"
FORMAT = 1
# Where training scripts keep the weights in a checkpoint, best first.
NESTED = ("state_dict_ema", "model_ema", "state_dict", "model")


def save(model: nn.Module, folder: str | Path) -> None:
    """Write a model and what is on it to a folder."""
    check_unfolded(model)
    spec = applied(model)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / WEIGHTS, lambda path: save_file(_plain(model), path, metadata={"format": "pt"}))
        _replace(folder / RECIPE, lambda path: path.write_text(json.dumps(_recipe(spec), indent=2) + "\n"))
    except (OSError, SafetensorError) as error:
        raise UnsmoothError(f"cannot write to {folder}: {error}") from error


def load(path: str | Path, model: nn.Module | str | None = None) -> nn.Module:
    """Read a saved folder, or a plain checkpoint file, into a model.

    A folder needs no `model` when the saved one was built from a spec; otherwise give the untreated host. A file
    (safetensors, or PyTorch's own format, read with weights_only) needs a spec or a model to load into.
    """
    path = Path(path)
    if path.is_dir():
        spec = _read_recipe(path / RECIPE)
        return _fill(_host(spec, model), path / WEIGHTS)
    if not path.exists():
        raise UnsmoothError(f"{path} does not exist: load takes a folder written by save, or a checkpoint file")
    if model is None:
        raise UnsmoothError(f"{path} is a checkpoint file without a recipe; say what it is: load(path, 'SPEC')")
    return _fill(create_model(model) if isinstance(model, str) else model, path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file, from wherever in it the weights are kept."""
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # every reader has its own errors for a broken or foreign file
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise UnsmoothError(f"cannot read weights from {path}: {first}") from error
    for key in NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise UnsmoothError(
            f"{path} holds no weights: expected tensors by name, or a dict with one of {', '.join(NESTED)}"
        )
    return {str(key).removeprefix("module."): value for key, value in content.items() if isinstance(value, Tensor)}


def _fill(model: nn.Module, path: Path) -> nn.Module:
    """Load weights into a model, or say which names and sizes differ and leave it as it was."""
    if not path.exists():
        raise UnsmoothError(f"{path} is missing")
    weights, own = read_weights(path), model.state_dict()
    problems = [
        ("not in the file", sorted(own.keys() - weights.keys())),
        ("not in the model", sorted(weights.keys() - own.keys())),
        ("of another size", sorted(k for k in own.keys() & weights.keys() if own[k].shape != weights[k].shape)),
    ]
    wrong = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for what, names in problems
        if names
    ]
    if wrong:
        raise UnsmoothError(f"{path} does not fit {applied(model) or type(model).__name__}: {'; '.join(wrong)}")
    model.load_state_dict(weights)
    return model


def _host(spec: ModelSpec, model: nn.Module | str | None) -> nn.Module:
    if isinstance(model, str):
        model = create_model(ModelSpec(parse(model).host))
    if model is None:
        if spec.host is None:
            raise UnsmoothError(
                "the saved model was not built from a spec, so its host is unknown; give it: load(path, model=host)"
            )
        return create_model(spec)
    if record_of(model).applications:
        raise UnsmoothError(f"load needs the untreated host, and this model has {applied(model)}; remove(model) first")
    try:
        for part in spec.remedies:
            apply(model, str(part))
    except UnsmoothError:
        if record_of(model).applications:
            remove(model)
        raise
    return model


def _recipe(spec: ModelSpec) -> dict[str, Any]:
    def written(part: Part) -> dict[str, Any]:
        return {"name": part.name, "options": dict(part.options)}

    return {
        "format": FORMAT,
        "spec": str(spec),
        "host": written(spec.host) if spec.host else None,
        "remedies": [written(part) for part in spec.remedies],
        "versions": {"unsmooth": unsmooth.__version__, "torch": torch.__version__},
    }


def _read_recipe(path: Path) -> ModelSpec:
    try:
        recipe = json.loads(path.read_text())
        if recipe["format"] != FORMAT:
            raise UnsmoothError(f"{path} has format {recipe['format']}, this version reads {FORMAT}")
        host = recipe["host"]
        return ModelSpec(
            Part(host["name"], host["options"]) if host else None,
            tuple(Part(part["name"], part["options"]) for part in recipe["remedies"]),
        )
    except FileNotFoundError as error:
        raise UnsmoothError(f"{path.parent} holds no {RECIPE}: it was not written by save") from error
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise UnsmoothError(f"{path} is not a recipe of unsmooth ({type(error).__name__}: {error})") from error


def _plain(model: nn.Module) -> dict[str, Tensor]:
    """The state dict as safetensors wants it: contiguous, and no storage shared by two names."""
    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        shared = tensor.untyped_storage().data_ptr() in seen
        seen.add(tensor.untyped_storage().data_ptr())
        plain[name] = tensor.detach().clone() if shared else tensor.detach().contiguous()
    return plain


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

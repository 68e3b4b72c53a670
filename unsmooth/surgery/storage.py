"""Saves a treated model as safetensors and a recipe, and loads it again. Nothing is pickled or evaluated.

    DIR/model.safetensors    every tensor of the state dict
    DIR/recipe.json          the spec: host, remedies with their options, versions

Both are written to temporary files, synced and renamed, so that a cut never leaves half a file; the weights name
their spec too, so that a pair of two saves is refused.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unsmooth._version import __version__
from unsmooth.errors import UnsmoothError
from unsmooth.spec import ModelSpec, SpecItem, parse
from unsmooth.surgery.apply import apply, remove
from unsmooth.surgery.create import create_model
from unsmooth.surgery.record import PREFIX, applied, check_unfolded, check_unwrapped, check_whole, record_of
from unsmooth.utils.files import replace_files

WEIGHTS, RECIPE = "model.safetensors", "recipe.json"
FORMAT = 1
SPEC = "unsmooth"  # the name of the spec in the metadata of the weights
WRAPPED = re.compile(r"^((module|_orig_mod)\.)+")
# Where training scripts keep the weights in a checkpoint, best first.
NESTED = ("state_dict_ema", "model_ema", "state_dict", "model")

# What tasks save beside weights, and how it is loaded.
TASKS = {
    "segmenter.json": "unsmooth.tasks.segmentation has load_segmenter and evaluate_segmentation for it",
    "vqa.json": "unsmooth.tasks.vqa.load_vqa loads it",
    "mae.json": "unsmooth.tasks.mae.load_mae loads it, and its encoder is in encoder/",
}


def save(model: nn.Module, folder: str | Path) -> None:
    """Write a model and what is on it to a folder."""
    check_unwrapped(model)
    check_unfolded(model)
    check_whole(model)
    spec = applied(model)
    folder = Path(folder)
    recipe = json.dumps(_recipe(spec), indent=2) + "\n"
    metadata = {"format": "pt", SPEC: str(spec)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_files({
            folder / WEIGHTS: lambda path: save_file(_plain(model), path, metadata=metadata),
            folder / RECIPE: lambda path: path.write_text(recipe, encoding="utf-8"),
        })  # fmt: skip
    except (OSError, SafetensorError) as error:
        raise UnsmoothError(f"cannot write to {folder}: {error}") from error


def load(path: str | Path, model: nn.Module | str | None = None) -> nn.Module:
    """Read a saved folder, or a plain checkpoint file, into a model.

    A folder needs no `model` when the saved one was built from a spec; otherwise give the untreated host. A file
    (safetensors, or PyTorch's own format, read with weights_only) needs a spec or a model to load into; where it is
    of the plain host, remedies stay at their start.
    """
    path = Path(path)
    if path.is_dir():
        spec = _read_recipe(path / RECIPE)
        if not (path / WEIGHTS).exists():
            raise UnsmoothError(f"{path} holds no {WEIGHTS}: the weights of its {RECIPE} are missing")
        _check_pair(spec, path)
        return _load_folder(spec, path, model)
    if not path.exists():
        raise UnsmoothError(f"{path} does not exist: load takes a folder written by save, or a checkpoint file")
    if model is None:
        raise UnsmoothError(f"{path} is a checkpoint file without a recipe; say what it is: load(path, 'SPEC')")
    if isinstance(model, str):
        model = create_model(model)
    check_unwrapped(model)
    return fill(model, _weights_for(model, path), path)


def open_model(model: nn.Module | str | Path, checkpoint: str | Path | None = None) -> tuple[nn.Module, str]:
    """A model and its name from whatever people have: the model, a saved folder, or a spec with or without weights."""
    if isinstance(model, str | Path):
        folder = Path(model)
        if folder.is_dir() and checkpoint is None:
            loaded = load(folder)
            return loaded, str(applied(loaded)) or folder.name
        text = str(model)
        return (create_model(text) if checkpoint is None else load(checkpoint, text)), text
    check_unwrapped(model)
    if checkpoint is not None:
        raise UnsmoothError("a checkpoint goes with a spec; load it into this model yourself, with unsmooth.load")
    spec = applied(model)
    if spec.host is not None:
        return model, str(spec)
    return model, "+".join([type(model).__name__, *(str(part) for part in spec.remedies)])


def fill_for_tuning(model: nn.Module, path: Path, classes: int) -> list[str]:
    """Load a checkpoint (a file or a saved folder) into a model to tune; a head for other classes starts anew.

    Gives the names of the tensors that stay as they are in the model. Remedies that the checkpoint does not have stay
    at their start.
    """
    if not path.exists():
        raise UnsmoothError(f"{path} does not exist: a checkpoint is a file, or a folder written by save")
    weights = _as_host_reads(model, _weights_for(model, path / WEIGHTS if path.is_dir() else path))
    own = model.state_dict()
    replaced = [
        name
        for name, value in own.items()
        if name in weights and value.shape != weights[name].shape
        and value.shape[:1] == (classes,) and value.shape[1:] == weights[name].shape[1:]
    ]  # fmt: skip
    fill(model, {**weights, **{name: own[name] for name in replaced}}, path)
    return replaced


def _weights_for(model: nn.Module, path: Path) -> dict[str, Tensor]:
    """The weights of a file under the names that a model has, with the start of remedies that the file lacks."""
    weights, own = read_weights(path), model.state_dict()
    if own.keys().isdisjoint(weights):  # saved from within DataParallel or torch.compile, which prefix every name
        weights = {WRAPPED.sub("", name): value for name, value in weights.items()}
    if not any(map(_of_remedy, weights)):
        weights |= {name: value for name, value in own.items() if _of_remedy(name)}
    return weights


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file, from wherever in it the weights are kept."""
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))  # names as save wrote them
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
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


def _as_host_reads(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as timm's own loader would hand them to this host: old names, position embeddings resampled."""
    adapt = getattr(sys.modules[_host_class(model).__module__], "checkpoint_filter_fn", None)
    own = model.state_dict()
    if adapt is None or all(name in weights and weights[name].shape == value.shape for name, value in own.items()):
        return weights
    try:
        adapted: dict[str, Tensor] = adapt(dict(weights), model)
    except Exception:  # written for the checkpoints that timm publishes; of others, the names tell what is wrong
        return weights
    return adapted


def _host_class(model: nn.Module) -> type:
    return getattr(type(model), "_unsmooth_host", type(model))


def fill(model: nn.Module, weights: dict[str, Tensor], path: Path) -> nn.Module:
    """Load weights into a model, or say which names and sizes differ and leave it as it was."""
    weights = _as_host_reads(model, weights)
    own = model.state_dict()
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
        raise UnsmoothError(f"{path} does not fit {str(applied(model)) or type(model).__name__}: {'; '.join(wrong)}")
    model.load_state_dict(weights)
    return model


def _of_remedy(name: str) -> bool:
    return any(step.startswith(PREFIX) for step in name.split("."))


def _load_folder(spec: ModelSpec, folder: Path, model: nn.Module | str | None) -> nn.Module:
    if isinstance(model, str):
        given = parse(model)
        if given.remedies and given.remedies != spec.remedies:
            raise UnsmoothError(f"{folder} holds {spec}, not {given}; give its host alone, or nothing")
        model, spec = None, ModelSpec(given.host, spec.remedies)
    if model is None:
        if spec.host is None:
            raise UnsmoothError(
                "the saved model was not built from a spec, so its host is unknown; give it: load(path, model=host)"
            )
        weights, built = read_weights(folder / WEIGHTS), create_model(spec)
        precisions = {value.dtype for value in weights.values() if value.is_floating_point()}
        if len(precisions) == 1:  # a model given by the caller keeps its own precision
            built.to(dtype=precisions.pop())
        return fill(built, weights, folder)
    check_unwrapped(model)
    if record_of(model).entries:
        raise UnsmoothError(f"load needs the untreated host, and this model has {applied(model)}; remove(model) first")
    try:
        for part in spec.remedies:
            apply(model, str(part))
        return fill(model, read_weights(folder / WEIGHTS), folder)
    except BaseException:
        if record_of(model).entries:
            remove(model)
        raise


def _recipe(spec: ModelSpec) -> dict[str, Any]:
    def written(part: SpecItem) -> dict[str, Any]:
        return {"name": part.name, "options": dict(part.options)}

    return {
        "format": FORMAT,
        "spec": str(spec),
        "host": written(spec.host) if spec.host else None,
        "remedies": [written(part) for part in spec.remedies],
        "versions": {"unsmooth": __version__, "torch": torch.__version__},
    }


def _read_recipe(path: Path) -> ModelSpec:
    def read(part: Any) -> SpecItem:
        return SpecItem(str(part["name"]), dict(part["options"]))

    if not path.exists():
        task = next((name for name in TASKS if (path.parent / name).exists()), None)
        reason = TASKS[task] if task else "it was not written by save"
        raise UnsmoothError(f"{path.parent} holds no {RECIPE}: {reason}")
    try:
        recipe = json.loads(path.read_text(encoding="utf-8"))
        version = recipe["format"]
        if version == FORMAT:
            host = recipe["host"]
            return ModelSpec(read(host) if host else None, tuple(map(read, recipe["remedies"])))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UnsmoothError(f"{path} is not a recipe of unsmooth ({type(error).__name__}: {error})") from error
    raise UnsmoothError(f"{path} has format {version!r}, and this version of unsmooth reads {FORMAT}; update unsmooth")


def _check_pair(spec: ModelSpec, folder: Path) -> None:
    """Refuse weights and a recipe of two saves: what a cut between the two renames leaves."""
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            saved = (file.metadata() or {}).get(SPEC, str(spec))
    except (OSError, SafetensorError):
        return  # a broken file: reading its weights says so
    if saved != str(spec):
        raise UnsmoothError(
            f"{folder} holds weights of {saved or 'a plain host'!r} and a {RECIPE} of {str(spec) or 'a plain host'!r}: "
            "a save was cut short; save again"
        )


def _plain(model: nn.Module) -> dict[str, Tensor]:
    """The state dict as safetensors wants it: contiguous, and no storage shared by two names."""
    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        shared = tensor.untyped_storage().data_ptr() in seen
        seen.add(tensor.untyped_storage().data_ptr())
        tensor = tensor.detach()
        plain[name] = tensor.clone(memory_format=torch.contiguous_format) if shared else tensor.contiguous()
    return plain

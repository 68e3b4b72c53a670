"""Saves a treated model as safetensors and a recipe, and loads it. Nothing is pickled or evaluated.

    DIR/model.safetensors    every tensor of the state dict
    DIR/recipe.json          the spec: host, remedies with their options, versions

Both are written to temporary files, synced and renamed, so that an interrupted save never leaves half a file. The
metadata of the weights holds the spec too, so that files of two different saves are not loaded together.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unsmooth._version import __version__
from unsmooth.errors import UnsmoothError, first_line
from unsmooth.hosts.user_code import runs_code, without_folder
from unsmooth.remedies.base import FromModel
from unsmooth.seam.patched import PREFIX
from unsmooth.spec import ModelSpec, SpecItem, parse
from unsmooth.surgery.apply import apply, remove, start_again
from unsmooth.surgery.create import build_model, create_model
from unsmooth.surgery.hub import HUB, NAME, download, is_on_hub
from unsmooth.surgery.record import applied, check_unfolded, check_unwrapped, check_whole, record_of
from unsmooth.utils.files import replace_files
from unsmooth.utils.precision import whole

WEIGHTS, RECIPE = "model.safetensors", "recipe.json"
FORMAT = 1
SPEC = "unsmooth"  # the key of the spec in the metadata of the weights
WRAPPED = re.compile(r"^((module|_orig_mod)\.)+")
# The entries of a checkpoint that may hold the weights, preferred ones first.
NESTED = ("state_dict_ema", "model_ema", "state_dict", "model")


def save(model: nn.Module, folder: str | Path) -> None:
    """Save a model with its remedies to a folder, as `model.safetensors` and `recipe.json`.

    Args:
        model: A host or a treated model.
        folder: The folder to write to. It is created if needed; files of an earlier save are replaced.

    Raises:
        UnsmoothError: The folder cannot be written to, or the model is wrapped or folded.

    Example:
        >>> import tempfile, unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+attn_scale")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     unsmooth.save(model, folder)
        ...     loaded = unsmooth.load(folder)
        >>> str(unsmooth.applied(loaded)) == str(unsmooth.applied(model))
        True
    """
    check_unwrapped(model)
    check_unfolded(model)
    check_whole(model)
    spec = shareable(applied(model))
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


def load(path: str | Path, model: nn.Module | str | ModelSpec | None = None) -> nn.Module:
    """Load a folder written by `save`, a repository written by `push`, or a checkpoint file.

    Args:
        path: A folder written by `save`, `hf-hub:USER/NAME` or `hf-hub:USER/NAME@REVISION`, a safetensors file, or a
            file written by `torch.save` (read with `weights_only=True`).
        model: The model to load into, or its spec. A folder needs none if the saved model was built from the spec of a
            library's host; otherwise pass the untreated host. A file always needs one; if the file has the weights of
            the plain host, the remedies of the model keep their initial parameters.

    Returns:
        The model with the loaded weights.

    Raises:
        UnsmoothError: The file or folder cannot be read, or its weights do not fit the model.

    Example:
        >>> import tempfile, unsmooth
        >>> host = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     unsmooth.save(host, folder)
        ...     treated = unsmooth.load(
        ...         f"{folder}/model.safetensors", f"{unsmooth.applied(host)}+feat_scale"
        ...     )
        >>> [str(remedy) for remedy in unsmooth.applied(treated).remedies]
        ['feat_scale']
    """
    path = download(str(path), (WEIGHTS, RECIPE)) if is_on_hub(path) else Path(path)
    if path.is_dir():
        spec = _read_recipe(path / RECIPE)
        if not (path / WEIGHTS).exists():
            raise UnsmoothError(f"{path} holds no {WEIGHTS}, only a {RECIPE}. Save the model again.")
        _check_pair(spec, path)
        return _load_folder(spec, path, model)
    if not path.exists():
        raise UnsmoothError(f"{path} does not exist. Pass a folder written by save, or a checkpoint file.")
    if model is None:
        raise UnsmoothError(f"{path} is a checkpoint file without a recipe. Pass its spec: load(path, 'SPEC').")
    if isinstance(model, str | ModelSpec):
        model = create_model(model)
    check_unwrapped(model)
    weights, plain = _weights_for(model, path)
    fill(model, weights, path)
    if plain:
        start_again(model)
    return model


class OpenedModel(NamedTuple):
    """A model that a command works on."""

    model: nn.Module
    name: str
    spec: ModelSpec | None = None  # it was built from


def open_model(
    model: nn.Module | str | Path | ModelSpec, checkpoint: str | Path | None = None, pretrained: bool = False
) -> OpenedModel:
    """A model and its name, from a model, a folder of `save`, a repository of `push`, or a spec."""
    if pretrained and checkpoint is not None:
        raise UnsmoothError("give either pretrained weights or a checkpoint, not both.")
    if isinstance(model, str | Path):
        folder = Path(model)
        if folder.is_dir() and checkpoint is None:
            if pretrained:
                raise UnsmoothError(f"{folder} holds weights already. Leave out pretrained.")
            loaded = load(folder)
            return OpenedModel(loaded, str(applied(loaded)) or folder.name)
        text = str(model)
        if checkpoint is None and not pretrained and _pushed(text):
            loaded = load(text)
            return OpenedModel(loaded, str(applied(loaded)) or text)
        return _open_spec(parse(text), text, checkpoint, pretrained)
    if isinstance(model, ModelSpec):
        return _open_spec(model, str(model), checkpoint, pretrained)
    check_unwrapped(model)
    if pretrained:
        raise UnsmoothError("pretrained needs a spec. A model that was built already has its weights.")
    if checkpoint is not None:
        raise UnsmoothError("a checkpoint needs a spec. Load it into this model with unsmooth.load(checkpoint, model).")
    spec = applied(model)
    if spec.host is not None:
        return OpenedModel(model, str(spec))
    return OpenedModel(model, "+".join([type(model).__name__, *(str(remedy) for remedy in spec.remedies)]))


def _open_spec(spec: ModelSpec, name: str, checkpoint: str | Path | None, pretrained: bool) -> OpenedModel:
    model = create_model(spec, pretrained) if checkpoint is None else load(checkpoint, spec)
    return OpenedModel(model, name, spec)


def _pushed(text: str) -> bool:
    """Whether a name is that of a repository on the hub written by `push`; others are models of timm."""
    if not is_on_hub(text) or not NAME.match(text.removeprefix(HUB)):
        return False
    try:
        return (download(text, (RECIPE,)) / RECIPE).exists()
    except UnsmoothError:  # timm tells what is wrong
        return False


def fill_for_tuning(model: nn.Module, path: Path, classes: int) -> list[str]:
    """Load a checkpoint (a file or a saved folder) for fine-tuning and return the names of the tensors not loaded.

    A head for another number of classes keeps its new weights, and remedies that the checkpoint does not have keep
    their initial parameters.
    """
    if not path.exists():
        raise UnsmoothError(f"{path} does not exist. Pass a checkpoint file, or a folder written by save.")
    weights, plain = _weights_for(model, path / WEIGHTS if path.is_dir() else path)
    weights = _adapted(model, weights)
    own = model.state_dict()
    replaced = [
        name
        for name, value in own.items()
        if name in weights and value.shape != weights[name].shape
        and value.shape[:1] == (classes,) and value.shape[1:] == weights[name].shape[1:]
    ]  # fmt: skip
    fill(model, {**weights, **{name: own[name] for name in replaced}}, path)
    if plain:
        start_again(model)
    return replaced


def _weights_for(model: nn.Module, path: Path) -> tuple[dict[str, Tensor], bool]:
    """The weights of a file by the names of the model, and whether they are of the plain host.

    Remedies that are not in the file keep the model's values.
    """
    weights, own = read_weights(path), model.state_dict()
    if own.keys().isdisjoint(weights):  # DataParallel and torch.compile prefix every name
        weights = {WRAPPED.sub("", name): value for name, value in weights.items()}
    plain = not any(map(_of_remedy, weights))
    if plain:
        weights |= {name: value for name, value in own.items() if _of_remedy(name)}
    return weights, plain


def _why_unreadable(path: Path, error: Exception) -> str:
    """The reason as text. Messages of readers are a number ("105"), or advise to load a file unsafely."""
    if isinstance(error, OSError):
        return first_line(error)
    size = path.stat().st_size
    if size == 0:
        return "the file is empty. Copy or download it again."
    with path.open("rb") as file:
        start = file.read(2)
    zipped = zipfile.is_zipfile(path)
    if path.suffix == ".safetensors":
        return f"it is damaged, or not a safetensors file ({first_line(error)}; {size:,} bytes)"
    if start == b"PK" and not zipped:
        return f"the file ends too early ({size:,} bytes). Copy or download it again."
    if zipped or start[:1] == b"\x80":  # the formats of torch.save, new and old
        return (
            "it holds more than tensors, or is damaged: torch.load refuses it with weights_only=True. Save only the "
            "state dict with torch.save."
        )
    return f"it is not a file of torch.save ({size:,} bytes). Pass a .pth or .safetensors file."


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file by name, from the entry that holds the weights."""
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))  # always tensors by name
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers raise errors of many types for a broken or foreign file
        raise UnsmoothError(f"cannot read weights from {path}: {_why_unreadable(path, error)}") from error
    for key in NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise UnsmoothError(
            f"{path} holds no weights. Expected tensors by name, or a dict with one of {', '.join(NESTED)}."
        )
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    odd = next((name for name, value in tensors.items() if value.is_meta or value.layout != torch.strided), None)
    if odd is not None:
        raise UnsmoothError(f"{path} holds {odd} without values or as a sparse tensor. Save dense tensors.")
    return tensors


def _adapted(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as the library's loader adapts them to a host: names of older versions, resampled positions (timm)."""
    adapt = getattr(sys.modules[_host_class(model).__module__], "checkpoint_filter_fn", None)
    own, weights = model.state_dict(), _by_own_names(model, weights)
    if adapt is None or all(name in weights and weights[name].shape == value.shape for name, value in own.items()):
        return weights
    try:
        adapted: dict[str, Tensor] = adapt(dict(weights), model)
    except Exception:  # the filter is for timm's own checkpoints; `fill` reports what does not fit
        return weights
    return adapted


def _host_class(model: nn.Module) -> type:
    return getattr(type(model), "_unsmooth_host", type(model))


def fill(model: nn.Module, weights: dict[str, Tensor], path: Path) -> nn.Module:
    """Load weights into a model. If names or shapes differ, raise with a list of them and leave the model unchanged."""
    weights = _adapted(model, weights)
    own = model.state_dict()
    both = own.keys() & weights.keys()
    problems = [
        ("not in the file", sorted(own.keys() - weights.keys())),
        ("not in the model", sorted(weights.keys() - own.keys())),
        ("of another kind of number", sorted(k for k in both if _kind(own[k]) != _kind(weights[k]))),
        ("of another size", sorted(k for k in both if own[k].shape != weights[k].shape)),
    ]
    wrong = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for what, names in problems
        if names
    ]
    if wrong:
        raise UnsmoothError(f"{path} does not fit {str(applied(model)) or type(model).__name__}: {'; '.join(wrong)}")
    model.load_state_dict(weights)
    start_again(model, FromModel)  # what they keep is not in the file
    return model


def _by_own_names(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a file under the names of the model, if `save_pretrained` gave them those of older versions."""
    own = model.state_dict()
    if own.keys() == weights.keys() or not hasattr(model, "save_pretrained"):
        return dict(weights)
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # an older version, which does not rename
        return dict(weights)
    places = {value.data_ptr(): name for name, value in own.items()}
    saved = revert_weight_conversion(cast(Any, model), own)  # renamed tensors; those that it joins or splits are new
    names = {name: places[value.data_ptr()] for name, value in saved.items() if value.data_ptr() in places}
    return {names.get(name, name): value for name, value in weights.items()}


def _kind(tensor: Tensor) -> str:
    """Which numbers a tensor holds; they are converted within a kind, such as half to single precision."""
    return "complex" if tensor.is_complex() else "float" if tensor.is_floating_point() else "integer"


def _of_remedy(name: str) -> bool:
    return any(step.startswith(PREFIX) for step in name.split("."))


def _load_folder(spec: ModelSpec, folder: Path, model: nn.Module | str | ModelSpec | None) -> nn.Module:
    offline = model is None  # the caller may name a host on the hub; the folder may not
    if isinstance(model, str | ModelSpec):
        requested = parse(model) if isinstance(model, str) else model
        if requested.remedies and requested.remedies != spec.remedies:
            raise UnsmoothError(f"{folder} holds {spec}, not {requested}. Pass its host only, or omit the model.")
        model, spec = None, ModelSpec(requested.host, spec.remedies)
    if model is None:
        if spec.host is None:
            raise UnsmoothError(
                "the saved model was not built from a spec, so its host is unknown. Pass it: load(path, model=host)."
            )
        weights, built = read_weights(folder / WEIGHTS), build_model(spec, offline=offline)
        dtypes = {value.dtype for value in weights.values() if value.is_floating_point()}
        if len(dtypes) == 1:  # a model of the caller keeps its dtype
            built.to(dtype=dtypes.pop())
        return fill(built, weights, folder)
    check_unwrapped(model)
    if record_of(model).applied:
        raise UnsmoothError(
            f"load needs the untreated host, and this model has {applied(model)}. Call remove(model) first."
        )
    try:
        for remedy in spec.remedies:
            apply(model, remedy)
        return fill(model, read_weights(folder / WEIGHTS), folder)
    except BaseException:
        if record_of(model).applied:
            remove(model)
        raise


def shareable(spec: ModelSpec) -> ModelSpec:
    """The spec without the folder of the user's own code, which is of no use elsewhere, and private."""
    if spec.host is None or not runs_code(spec.host.name):
        return spec
    return ModelSpec(SpecItem(without_folder(spec.host.name), spec.host.options), spec.remedies)


def _recipe(spec: ModelSpec) -> dict[str, Any]:
    versions = {"unsmooth": __version__, "torch": torch.__version__}
    return {"format": FORMAT, **spec.to_json(), "versions": versions}


def _read_recipe(path: Path) -> ModelSpec:
    if not path.exists():
        raise UnsmoothError(f"{path.parent} holds no {RECIPE}: {_why_no_recipe(path.parent)}")
    try:
        recipe = json.loads(path.read_text(encoding="utf-8"))
        version = recipe["format"]
        if version == FORMAT:
            return ModelSpec.from_json(recipe)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UnsmoothError(f"{path} is not a recipe of unsmooth ({type(error).__name__}: {error})") from error
    raise UnsmoothError(
        f"{path} has format {version!r}; this version of unsmooth reads format {FORMAT}. Update unsmooth."
    )


def _why_no_recipe(folder: Path) -> str:
    if task := _task_of(folder):
        return f"it holds a model of the task {task}. Load it with the load function of unsmooth.tasks.{task}"
    inside = sorted(folder.glob(f"*/{RECIPE}")) or sorted(folder.glob(f"runs/*/*/*/{RECIPE}"))
    if inside:  # a directory of `train` or `compare`
        return f"it holds saved models. Use one of them, such as {inside[-1].parent}"
    return "it was not written by save"


def _task_of(folder: Path) -> str:
    """The task that a file of the folder names; "" if there is none."""
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        task = content.get("task") if isinstance(content, dict) else None
        if isinstance(task, str) and task.isidentifier():
            return task
    return ""


def _check_pair(spec: ModelSpec, folder: Path) -> None:
    """Raise if weights and recipe are of different saves, as an interrupted save leaves them."""
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            saved = (file.metadata() or {}).get(SPEC, str(spec))
    except (OSError, SafetensorError):
        return  # a broken file; reading its weights raises
    if saved != str(spec):
        raise UnsmoothError(
            f"{folder} holds weights of {saved or 'a plain host'!r} and a {RECIPE} of {str(spec) or 'a plain host'!r}: "
            "a save was interrupted. Save again."
        )


def _plain(model: nn.Module) -> dict[str, Tensor]:
    """The state dict as safetensors needs it: contiguous, and without storage shared by two names."""
    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        tensor = whole(tensor)
        shared = tensor.untyped_storage().data_ptr() in seen
        seen.add(tensor.untyped_storage().data_ptr())
        tensor = tensor.detach()
        plain[name] = tensor.clone(memory_format=torch.contiguous_format) if shared else tensor.contiguous()
    return plain

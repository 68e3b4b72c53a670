"""Hugging Face models of tasks: configuration from a spec, remedies on the backbone, saving and loading.

    DIR/config.json          configuration, as transformers writes it
    DIR/model.safetensors    all tensors of the state dict
    DIR/TASK.json            remedies with their options, versions

Folders without remedy parameters can also be read by `from_pretrained` of transformers. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from unsmooth import remedies
from unsmooth._version import __version__
from unsmooth.errors import UnsmoothError, missing_package
from unsmooth.hosts.build import create_host
from unsmooth.hosts.inputs import Example
from unsmooth.spec import ModelSpec, SpecItem, parse
from unsmooth.surgery.apply import apply
from unsmooth.surgery.record import RECORD, Record, applied, check_unwrapped
from unsmooth.surgery.storage import WEIGHTS, load
from unsmooth.utils.files import replace_files

CONFIG = "config.json"
FORMAT = 1


def read_spec(task: str, kind: str, text: str | ModelSpec) -> ModelSpec:
    """Parse a spec and check that its host is of Hugging Face, and its remedies and their options exist."""
    spec = parse(text)
    if spec.host is None or not spec.host.name.startswith("hf:"):
        raise UnsmoothError(f"the task {task} needs hf:{kind} (got {spec.host}). Use hf:{kind}(…)+remedy or hf:FOLDER.")
    for remedy in spec.remedies:
        remedies.options_of(remedy)
    return spec


def config_of(task: str, kind: str, host: SpecItem) -> Any:
    """Configuration of the host of a spec, from a model on the meta device."""
    with torch.device("meta"):
        model: Any = create_host(host)
    config = model.config
    if config.model_type != kind:
        raise UnsmoothError(f"the task {task} needs hf:{kind} (got {host} of type {config.model_type})")
    return config


def model_class(name: str) -> Any:
    """A class of transformers, by name."""
    try:
        import transformers
    except ImportError as error:
        raise missing_package("a Hugging Face host", "transformers", "hf") from error
    return getattr(transformers, name)


def apply_remedies(backbone: nn.Module, spec: ModelSpec, example: Example | None = None) -> None:
    """Apply the remedies of a spec to the backbone of a task model."""
    backbone.__dict__[RECORD] = Record(spec.host)
    for remedy in spec.remedies:
        apply(backbone, remedy, example=example)


def write_folder(model: Any, backbone: nn.Module, task: str, folder: Path, about: Mapping[str, Any]) -> None:
    """Save a task model; `about` holds further entries of TASK.json."""
    check_unwrapped(model)
    content = {
        "format": FORMAT, "task": task, **applied(backbone).to_json(), **about,
        "versions": {"unsmooth": __version__, "torch": torch.__version__},
    }  # fmt: skip
    model.config.architectures = [type(model).__name__]
    config = model.config.to_json_string(use_diff=False)
    tensors = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_files({
            folder / WEIGHTS: lambda path: save_file(tensors, path, metadata={"format": "pt"}),
            folder / CONFIG: lambda path: path.write_text(config, encoding="utf-8"),
            folder / f"{task}.json": lambda path: path.write_text(json.dumps(content, indent=2) + "\n", "utf-8"),
        })  # fmt: skip
    except (OSError, SafetensorError) as error:
        raise UnsmoothError(f"cannot write to {folder}: {error}") from error


def read_folder(
    folder: str | Path, task: str, config_class: str, make: Callable[[Any, ModelSpec], nn.Module]
) -> tuple[nn.Module, dict[str, Any]]:
    """Load a task model and its TASK.json; `make` builds the model from a configuration and a spec."""
    folder = Path(folder)
    about = _read_json(folder / f"{task}.json")
    if about.get("format") != FORMAT or about.get("task") != task:
        raise UnsmoothError(
            f"{folder / f'{task}.json'} was not written by the task {task}, or by a newer version of unsmooth. "
            "Save the model again."
        )
    try:
        spec = ModelSpec.from_json(about)
    except (KeyError, TypeError, ValueError) as error:
        raise UnsmoothError(f"{folder / f'{task}.json'} does not list the remedies of the model") from error
    config = model_class(config_class).from_dict(_read_json(folder / CONFIG))
    model = make(config, spec)
    return load(folder / WEIGHTS, model), about


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UnsmoothError(f"{path.parent} holds no {path.name}. Use a folder that this task saved.") from error
    except (OSError, ValueError) as error:
        raise UnsmoothError(f"cannot read {path}: {error}") from error
    return content

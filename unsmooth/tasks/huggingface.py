"""Task models of Hugging Face: their configuration from a spec, remedies on their backbone, their folder.

    DIR/config.json          the configuration, as transformers writes it
    DIR/model.safetensors    every tensor of the state dict
    DIR/TASK.json            the remedies with their options, versions

A folder without learned remedies is one that transformers' own `from_pretrained` reads too. Nothing is pickled.
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
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.build import create_host
from unsmooth.hosts.inputs import Example
from unsmooth.spec import ModelSpec, SpecItem, parse
from unsmooth.surgery.apply import apply
from unsmooth.surgery.record import RECORD, Record, applied, check_unwrapped
from unsmooth.surgery.storage import WEIGHTS, load
from unsmooth.utils.files import replace_files

CONFIG = "config.json"
FORMAT = 1


def read_spec(task: str, kind: str, text: str) -> ModelSpec:
    """A spec whose host is of Hugging Face and whose remedies exist, with options that they have."""
    spec = parse(text)
    if spec.host is None or not spec.host.name.startswith("hf:"):
        raise UnsmoothError(f"{task} trains hf:{kind}, not {spec.host}; write hf:{kind}(…)+remedy, or hf:FOLDER")
    for part in spec.remedies:
        remedies.options_of(part)
    return spec


def config_of(task: str, kind: str, host: SpecItem) -> Any:
    """The configuration that a spec's host stands for; only an empty shell is built."""
    with torch.device("meta"):
        shell: Any = create_host(host)
    config = shell.config
    if config.model_type != kind:
        raise UnsmoothError(f"{task} trains hf:{kind}, and {host} is of the type {config.model_type}")
    return config


def model_class(name: str) -> Any:
    """A class of transformers, which is an extra."""
    try:
        import transformers
    except ImportError as error:
        raise UnsmoothError("Hugging Face hosts need an extra: pip install 'unsmooth[hf]'") from error
    return getattr(transformers, name)


def treat(backbone: nn.Module, spec: ModelSpec, example: Example | None = None) -> None:
    """Put a spec's remedies on the backbone of a task model, which keeps the record of them."""
    backbone.__dict__[RECORD] = Record(spec.host)
    for part in spec.remedies:
        apply(backbone, part, example=example)


def write_folder(model: Any, backbone: nn.Module, task: str, folder: Path, about: Mapping[str, Any]) -> None:
    """Write a task model; `about` is what else its TASK.json says."""
    check_unwrapped(model)
    spec = applied(backbone)
    written = {
        "format": FORMAT, "task": task, "spec": str(spec), "host": _written(spec.host),
        "remedies": [_written(part) for part in spec.remedies], **about,
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
            folder / f"{task}.json": lambda path: path.write_text(json.dumps(written, indent=2) + "\n", "utf-8"),
        })  # fmt: skip
    except (OSError, SafetensorError) as error:
        raise UnsmoothError(f"cannot write to {folder}: {error}") from error


def read_folder(
    folder: str | Path, task: str, config_class: str, make: Callable[[Any, ModelSpec], nn.Module]
) -> tuple[nn.Module, dict[str, Any]]:
    """A task model as it was written, and its TASK.json; `make` builds and treats one from a configuration."""
    folder = Path(folder)
    about = _read_json(folder / f"{task}.json")
    if about.get("format") != FORMAT or about.get("task") != task:
        raise UnsmoothError(f"{folder / f'{task}.json'} is not of a model of {task} that this version reads")
    try:
        host, *parts = (SpecItem(part["name"], dict(part["options"])) for part in (about["host"], *about["remedies"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UnsmoothError(f"{folder / f'{task}.json'} does not say which remedies are on the model") from error
    config = model_class(config_class).from_dict(_read_json(folder / CONFIG))
    model = make(config, ModelSpec(host, tuple(parts)))
    return load(folder / WEIGHTS, model), about


def _written(part: SpecItem | None) -> dict[str, Any]:
    assert part is not None  # `treat` named the host
    return {"name": part.name, "options": dict(part.options)}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UnsmoothError(f"{path.parent} holds no {path.name}: it was not written by this task") from error
    except (OSError, ValueError) as error:
        raise UnsmoothError(f"cannot read {path}: {error}") from error
    return found

"""Save and load segmenters: the host as `unsmooth.save` writes it, and the heads. Nothing is pickled.

DIR/backbone/           the treated host, for unsmooth.load
DIR/head.safetensors    weights of neck and heads
DIR/segmenter.json      options, and digests of both files, so that files of two saves are not mixed
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unsmooth._version import __version__
from unsmooth.errors import UnsmoothError
from unsmooth.surgery.storage import WEIGHTS, load, save
from unsmooth.tasks.segmentation.model import Segmenter
from unsmooth.tasks.segmentation.options import SegmentationOptions
from unsmooth.utils.files import replace_files
from unsmooth.utils.options import read_options

BACKBONE, HEAD, SETTINGS = "backbone", "head.safetensors", "segmenter.json"
FORMAT = 1


def save_segmenter(model: Segmenter, folder: str | Path) -> None:
    """Save a segmenter.

    Args:
        model: Segmenter.
        folder: Folder to write to; it is created.

    Raises:
        UnsmoothError: If the folder cannot be written.
    """
    folder = Path(folder)
    save(model.backbone, folder / BACKBONE)
    head = {name: value.detach().contiguous() for name, value in _head(model).items()}
    written: dict[str, str] = {}

    def weights(path: Path) -> None:
        save_file(head, path, metadata={"format": "pt"})
        written["head"] = _digest(path)

    def settings(path: Path) -> None:
        content = {
            "format": FORMAT, "task": "segmentation", "options": model.options.to_json(),
            "digests": {"head": written["head"], "backbone": _digest(folder / BACKBONE / WEIGHTS)},
            "versions": {"unsmooth": __version__, "torch": torch.__version__},
        }  # fmt: skip
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    try:
        replace_files({folder / HEAD: weights, folder / SETTINGS: settings})
    except (OSError, SafetensorError) as error:
        raise UnsmoothError(f"cannot write to {folder}: {error}") from error


def load_segmenter(folder: str | Path) -> Segmenter:
    """Load a segmenter.

    Args:
        folder: Folder that `save_segmenter` or a run of the task wrote.

    Returns:
        The segmenter on the CPU.

    Raises:
        UnsmoothError: If a file is missing, or if the files are of different saves.
    """
    folder = Path(folder)
    settings = _settings(folder)
    for part, path in (("head", folder / HEAD), ("backbone", folder / BACKBONE / WEIGHTS)):
        if not path.is_file():
            raise UnsmoothError(f"{folder} holds no {path.relative_to(folder)}: the {part} is missing")
        if _digest(path) != settings["digests"][part]:
            raise UnsmoothError(
                f"{path} and {SETTINGS} are of different saves: a save was interrupted. Save the model again."
            )
    with torch.random.fork_rng(devices=[]):  # the initial weights of the head are replaced
        model = Segmenter(
            load(folder / BACKBONE), read_options(SegmentationOptions, settings["options"], str(folder / SETTINGS))
        )
    head = load_file(folder / HEAD)
    if head.keys() != _head(model).keys():
        raise UnsmoothError(
            f"{folder / HEAD} does not match {SETTINGS}. Save the model again with this version of unsmooth."
        )
    for module in (model.neck, model.head, model.auxiliary):
        if module is not None:
            module.to(dtype=head["head.classifier.weight"].dtype)
    model.load_state_dict(head, strict=False)  # copied, since kernels may round differently on memory-mapped tensors
    return model


def _head(model: Segmenter) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if not name.startswith("backbone.")}


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = content["format"]
        if version == FORMAT:
            return {"digests": dict(content["digests"]), "options": dict(content["options"])}
    except FileNotFoundError as error:
        raise UnsmoothError(f"{folder} holds no {SETTINGS}. Use a folder that a segmenter was saved to.") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UnsmoothError(f"cannot read {path} ({type(error).__name__}: {error})") from error
    raise UnsmoothError(f"{path} has format {version!r}, but this version of unsmooth reads {FORMAT}. Update unsmooth.")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

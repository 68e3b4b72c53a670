"""A segmenter as files: the host as `unsmooth.save` writes it, the head beside it. Nothing is pickled.

DIR/backbone/           the treated host, for unsmooth.load
DIR/head.safetensors    the weights of everything above it
DIR/segmenter.json      options, and a digest of both files, so that parts of two saves are refused
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
    """Write a segmenter to a folder."""
    folder = Path(folder)
    save(model.backbone, folder / BACKBONE)
    head = {name: value.detach().contiguous() for name, value in _head(model).items()}
    written: dict[str, str] = {}

    def weights(path: Path) -> None:
        save_file(head, path, metadata={"format": "pt"})
        written["head"] = _digest(path)

    def settings(path: Path) -> None:
        found = {
            "format": FORMAT, "task": "segmentation", "options": model.options.to_json(),
            "digests": {"head": written["head"], "backbone": _digest(folder / BACKBONE / WEIGHTS)},
            "versions": {"unsmooth": __version__, "torch": torch.__version__},
        }  # fmt: skip
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")

    try:
        replace_files({folder / HEAD: weights, folder / SETTINGS: settings})
    except (OSError, SafetensorError) as error:
        raise UnsmoothError(f"cannot write to {folder}: {error}") from error


def load_segmenter(folder: str | Path) -> Segmenter:
    """A segmenter from the folder that it was saved to."""
    folder = Path(folder)
    found = _settings(folder)
    for what, path in (("head", folder / HEAD), ("backbone", folder / BACKBONE / WEIGHTS)):
        if not path.is_file():
            raise UnsmoothError(f"{folder} holds no {path.relative_to(folder)}: the {what} is missing")
        if _digest(path) != found["digests"][what]:
            raise UnsmoothError(
                f"{path} is not the file that {SETTINGS} was written with: a save was cut short; save again"
            )
    with torch.random.fork_rng(devices=[]):  # the head is filled at once: what it draws is nobody's
        model = Segmenter(
            load(folder / BACKBONE), read_options(SegmentationOptions, found["options"], str(folder / SETTINGS))
        )
    head = load_file(folder / HEAD)
    if head.keys() != _head(model).keys():
        raise UnsmoothError(f"{folder / HEAD} does not fit {SETTINGS}: it was saved by another version of unsmooth")
    for part in (model.neck, model.head, model.auxiliary):
        if part is not None:
            part.to(dtype=head["head.classifier.weight"].dtype)
    model.load_state_dict(head, strict=False)  # copied: kernels may round otherwise on memory that lies as in a file
    return model


def _head(model: Segmenter) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if not name.startswith("backbone.")}


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = found["format"]
        if version == FORMAT:
            return {"digests": dict(found["digests"]), "options": dict(found["options"])}
    except FileNotFoundError as error:
        raise UnsmoothError(f"{folder} holds no {SETTINGS}: it is no saved segmenter") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UnsmoothError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    raise UnsmoothError(f"{path} has format {version!r}, and this version of unsmooth reads {FORMAT}; update unsmooth")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

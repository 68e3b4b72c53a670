"""Save and load pre-trained MAEs: the whole model for further pre-training, and its encoder for fine-tuning.

DIR/config.json, model.safetensors, mae.json    for `load_mae`, and for transformers if no remedy has
                                                parameters
DIR/encoder/                                    hf:vit with the same remedies, for `unsmooth.load` and --checkpoint
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from unsmooth.surgery.storage import save
from unsmooth.tasks.huggingface import read_folder, write_folder
from unsmooth.tasks.mae.encoder import as_classifier
from unsmooth.tasks.mae.model import TASK, build

ENCODER = "encoder"


def save_mae(model: Any, folder: str | Path, classes: int) -> None:
    """Save a model, and its encoder as a classifier of `classes` classes."""
    folder = Path(folder)
    write_folder(model, model.vit, TASK, folder, {})
    save(as_classifier(model.vit, classes), folder / ENCODER)


def load_mae(folder: str | Path) -> nn.Module:
    """Load a model that the task mae saved.

    Args:
        folder: Folder of the model, such as RUN/last.

    Returns:
        A ViTMAEForPreTraining with the remedies on its encoder.

    Raises:
        UnsmoothError: If a file is missing or cannot be read.
    """
    return read_folder(folder, TASK, "ViTMAEConfig", build)[0]

"""Where a pre-trained MAE is kept: the whole model to pre-train further, its encoder to fine-tune.

DIR/config.json, model.safetensors, mae.json    for `load_mae`, and for transformers where nothing was learned by
                                                remedies
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
    """Write a model, and its encoder as a classifier of so many classes."""
    folder = Path(folder)
    write_folder(model, model.vit, TASK, folder, {})
    save(as_classifier(model.vit, classes), folder / ENCODER)


def load_mae(folder: str | Path) -> nn.Module:
    """The ViTMAEForPreTraining that a run of the task mae saved, remedies on its encoder."""
    return read_folder(folder, TASK, "ViTMAEConfig", build)[0]

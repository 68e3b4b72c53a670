"""`push`: a treated model, its recipe and its diagnosis go to the Hugging Face Hub."""

from __future__ import annotations

import tempfile
from pathlib import Path

from torch import nn

from unsmooth.diagnosis.diagnose import diagnose
from unsmooth.hosts.user_code import runs_code
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.surgery.hub import check_name, upload
from unsmooth.surgery.record import applied
from unsmooth.surgery.storage import save, shareable
from unsmooth.utils.files import write

CARD, DIAGNOSIS = "README.md", "diagnosis.json"
IMAGES = 16  # of a diagnosis that push makes itself


def push(
    model: nn.Module,
    repository: str,
    diagnosis: Diagnosis | bool = True,
    *,
    private: bool = False,
    message: str = "Model, recipe and diagnosis",
    token: str | None = None,
) -> str:
    """Push a model to the Hugging Face Hub: weights as safetensors, its recipe, and a model card with its diagnosis.

    `unsmooth.load("hf-hub:USER/NAME")` loads it again. No code is uploaded, and none is run when it is loaded.

    Args:
        model: A host or a treated model.
        repository: USER/NAME. The repository is created if there is none.
        diagnosis: The diagnosis for the card. True: a quick one on 16 photographs. False: none.
        private: Whether a new repository is private.
        message: Message of the commit.
        token: Token of the hub. Default: the one of `hf auth login`.

    Returns:
        The address of the commit.

    Raises:
        UnsmoothError: The model cannot be saved, or the hub refuses it or cannot be reached.

    Example:
        >>> import unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+attn_scale")
        >>> unsmooth.push(model, "no name")  # checked before anything is computed or sent
        Traceback (most recent call last):
        ...
        unsmooth.errors.UnsmoothError: 'no name' is not the name of a repository on the hub. Use USER/NAME.
    """
    from unsmooth.report.model_card import model_card  # the tables need rich, which other names do not

    check_name(repository)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save(model, folder)
        spec = shareable(applied(model))
        made = diagnosis or None
        if made is True:
            made = diagnose(model, quick=True, limit=IMAGES)
            made.model.name = str(spec) or made.model.name
        builds_itself = spec.host is not None and not runs_code(spec.host.name)
        write(folder / CARD, model_card(repository, spec, builds_itself, made))
        if made is not None:
            write(folder / DIAGNOSIS, made.to_json())
        return upload(folder, repository, message, private, token)

"""Gram anchoring (Siméoni et al., DINOv3, 2025).

    1/n² ‖X̂ X̂ᵀ − Ŷ Ŷᵀ‖_F²,   X̂ and Ŷ the L2-normalised patch tokens of the model and of a reference

as a mean over images. The Gram matrix of an image holds the similarities of its patches. The loss keeps them as they
are in a frozen reference, while the tokens themselves may change: patch tokens do not become more similar in a long
training or fine-tuning. With `negative=false`, similarities below zero count as zero on both sides.

The reference is a copy of the model, with its remedies, at the time when the remedy is applied, or when weights are
loaded later (`unsmooth.load`, `--from`). Apply it to a trained model: a randomly initialised one is not a useful
reference. With `reference=FILE`, the reference has the weights of a safetensors file, or of a folder written by
`unsmooth.save`. The file is read at the first training step. The copy is not part of the model: it has no keys in the
state dict, is not saved, and does nothing in inference. It costs memory, and one forward pass without gradients per
training step.

The tokens are those after the last block. Class, register and other tokens before the patches are excluded. The outputs
do not change; the training loop adds the term to its loss (`unsmooth.surgery.auxiliary_loss`).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from unsmooth.errors import NotApplicable, UnsmoothError, first_line
from unsmooth.hosts.anatomy import Anatomy, Block
from unsmooth.hosts.inputs import first_tensor, run_images
from unsmooth.hosts.patch_embed import HookPoint
from unsmooth.hosts.token_layout import as_tokens, prefix_of
from unsmooth.remedies.base import FromModel, LossRemedy, Placement, TokenBuffer, register
from unsmooth.utils.options import option, options
from unsmooth.utils.precision import full, without_autocast

ADDED = "unsmooth_"  # names of patches start with it


@options
class GramAnchorOptions:
    weight: float = option("weight of the loss", default=1.0, above=0.0)
    negative: bool = option("compare similarities below zero too", default=True)
    reference: str = option("weights of the reference, a safetensors file or a saved folder", default="")


def gram_distance(x: Tensor, y: Tensor, negative: bool = True) -> Tensor:
    """Mean squared difference of the cosine similarities of tokens, (B, n, d), with those of a reference."""
    own, anchor = (unit @ unit.mT for unit in (F.normalize(x, dim=-1), F.normalize(y, dim=-1)))
    if not negative:
        own, anchor = own.relu(), anchor.relu()
    return (own - anchor).square().mean()


class Frozen:
    """A model that never changes: copies of its owner share it."""

    def __init__(self, model: nn.Module):
        self.model = model

    def __deepcopy__(self, memo: dict[int, Any]) -> Frozen:
        return self


class ReferenceBuffer(TokenBuffer, FromModel):
    """Stores the images of a training pass. `take` returns the patch tokens of the reference for them."""

    def __init__(self, block: Block, anatomy: Anatomy, weights: str):
        super().__init__(block, anatomy)
        self.block, self.weights = block.name, weights
        self.frozen: Frozen | None = None
        self.read = False  # whether the reference has the weights of its file

    def start_from_model(self, model: nn.Module) -> None:
        self.frozen = None  # which is not copied
        self.frozen, self.read = Frozen(copy.deepcopy(model).eval().requires_grad_(False)), False

    def take(self) -> Tensor | None:
        images, self.tokens = self.tokens, None
        if images is None:
            return None
        assert self.frozen is not None
        reference = self.frozen.model.to(images.device, images.dtype)
        if self.weights and not self.read:
            replace_weights(reference, Path(self.weights))
            self.read = True
        outputs: list[Tensor | None] = []
        handle = reference.get_submodule(self.block).register_forward_hook(
            lambda module, args, output: outputs.append(first_tensor(output))
        )
        try:
            with torch.no_grad():
                run_images(reference, images.detach())
        finally:
            handle.remove()
        tokens = outputs[-1]
        assert tokens is not None
        return as_tokens(tokens, self.channels)[:, self.prefix :]


def replace_weights(model: nn.Module, path: Path) -> None:
    """Load the host's weights from a file. Tensors of remedies are not needed; everything else must fit."""
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.exists():
        raise UnsmoothError(f"the reference of gram_anchor, {file}, does not exist. Set reference to its weights.")
    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UnsmoothError(f"cannot read the reference of gram_anchor from {file}: {first_line(error)}") from error
    own = {name: value for name, value in model.state_dict().items() if ADDED not in name}
    wrong = [name for name, value in own.items() if name not in weights or weights[name].shape != value.shape]
    if wrong:
        raise UnsmoothError(
            f"{file} does not fit as the reference of gram_anchor: {len(wrong)} tensors are missing or of another size "
            f"({', '.join(wrong[:3])}). Use weights of the same host."
        )
    model.load_state_dict({name: weights[name] for name in own}, strict=False)


@register
class GramAnchor(LossRemedy[GramAnchorOptions]):
    key = "gram_anchor"
    title = "Gram anchoring"
    paper = "Siméoni et al., DINOv3, 2025"
    acts_on = "training loss"
    Options = GramAnchorOptions
    departures = (
        "The paper anchors self-supervised training of a teacher and student: its reference is an earlier teacher, "
        "later given images of twice the resolution, whose features are resized, and is updated every 10,000 steps. "
        "Here the reference is a frozen copy of the same model, on the same images. The tokens are those after the "
        "last block, before the final norm. The squared norm is divided by n², as in a mean over pairs, so that the "
        "weight does not depend on the image size; the weight 1 is our choice."
    )

    def blocks(self, anatomy: Anatomy, options: GramAnchorOptions) -> list[int]:
        return [len(anatomy.blocks) - 1]

    def place(self, block: Block, anatomy: Anatomy, options: GramAnchorOptions) -> list[Placement]:
        if anatomy.patch_embed is None:
            raise NotApplicable("its patch embedding was not found, whose images the reference needs")
        if block.tokens - prefix_of(block, anatomy) < 2:
            raise NotApplicable("it has fewer than two patch tokens")
        images = HookPoint(anatomy.patch_embed.convolution, "input")
        return [
            Placement(HookPoint(block.name, "output"), TokenBuffer(block, anatomy)),
            Placement(images, ReferenceBuffer(block, anatomy, options.reference)),
        ]

    def loss(self, stored: list[Tensor], options: GramAnchorOptions) -> Tensor:
        with without_autocast(stored[0]):
            own, anchor = (full(x) for x in stored)
            return options.weight * gram_distance(own, anchor, options.negative)

"""The terms that loss remedies add to the training loss.

A loss remedy does not change the forward pass: its patches store the tokens or attention maps of each pass in training
mode with gradients. `auxiliary_loss` computes the terms from them and releases them:

    loss = criterion(model(images), labels)
    extra = auxiliary_loss(model)
    (loss if extra is None else loss + extra).backward()

A model with checkpointed blocks compiles with a graph break at each patch, or in one graph with
`torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.remedies.base import LossRemedy, MapBuffer, TokenBuffer
from unsmooth.surgery.record import AppliedRemedy, record_of


def auxiliary_loss(model: nn.Module) -> Tensor | None:
    """Return the weighted sum of the terms of all loss remedies for the last training pass.

    Call it once after each forward pass, before the backward pass.

    Args:
        model: A model, also a compiled one or one wrapped in DistributedDataParallel.

    Returns:
        The sum as a scalar tensor, or None if the model has no loss remedy.

    Raises:
        UnsmoothError: There was no forward pass in training mode with gradients since the last call.

    Example:
        >>> import torch, unsmooth
        >>> model = unsmooth.create_model("vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+diverse_patch")
        >>> loss = model(torch.randn(2, 3, 32, 32)).square().mean() + unsmooth.auxiliary_loss(model)
        >>> loss.backward()
    """
    terms = [
        _term(owner, entry, remedy)
        for owner in model.modules()
        for entry in record_of(owner).applied
        if isinstance(remedy := remedies.get(entry.remedy.name), LossRemedy)
    ]
    return sum(terms[1:], terms[0]) if terms else None


def _term(model: nn.Module, entry: AppliedRemedy, remedy: LossRemedy[Any]) -> Tensor:
    modules = dict(model.named_modules())
    patches = [modules.get(attachment.module) for attachment in entry.attachments]
    buffers = [patch for patch in patches if isinstance(patch, TokenBuffer | MapBuffer)]
    if len(buffers) < len(patches):
        raise UnsmoothError(f"blocks with patches of {remedy.key} were removed. Call remove(model), then apply again.")
    stored = [buffer.take() for buffer in buffers]
    values = [x for x in stored if x is not None]
    if len(values) < len(stored):
        raise UnsmoothError(
            f"{remedy.key} saw no forward pass in training mode with gradients since the last auxiliary_loss(model). "
            "Call it once after each forward pass; gradient checkpointing needs use_reentrant=False."
        )
    return remedy.loss(values, remedies.options_of(entry.remedy))

"""What loss remedies add to the training loss.

A loss remedy changes nothing in a forward pass: its parts keep the tokens that passed them, in training mode and with
gradients on. `auxiliary_loss` makes the terms of them and lets the tokens go:

    loss = criterion(model(images), labels)
    extra = auxiliary_loss(model)
    (loss if extra is None else loss + extra).backward()

A model with checkpointed blocks compiles with a graph break at each part, or in one graph under
`torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint`.
"""

from __future__ import annotations

from torch import Tensor, nn

from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.remedies.base import LossRemedy, TokenBuffer
from unsmooth.surgery.record import AppliedRemedy, record_of


def auxiliary_loss(model: nn.Module) -> Tensor | None:
    """The sum of the loss remedies' terms, weighted, of the last training pass; None where no such remedy is on.

    Call it once after each forward pass, in front of the backward pass. It takes a wrapped model too (compiled,
    DistributedDataParallel). Where a loss remedy is on and saw no training pass since the last call, it raises: in
    eval mode and without gradients nothing is kept.
    """
    terms = [
        _term(owner, entry, remedy)
        for owner in model.modules()
        for entry in record_of(owner).entries
        if isinstance(remedy := remedies.get(entry.part.name), LossRemedy)
    ]
    return sum(terms[1:], terms[0]) if terms else None


def _term(model: nn.Module, entry: AppliedRemedy, remedy: LossRemedy) -> Tensor:
    there = dict(model.named_modules())
    parts = [there.get(f"{attachment.home}.{attachment.child}".lstrip(".")) for attachment in entry.attachments]
    keepers = [part for part in parts if isinstance(part, TokenBuffer)]
    if len(keepers) < len(parts):
        raise UnsmoothError(f"blocks that {remedy.key} looks at were taken out; remove(model), then apply again")
    tokens = [keeper.take() for keeper in keepers]
    seen = [x for x in tokens if x is not None]
    if len(seen) < len(tokens):
        raise UnsmoothError(
            f"{remedy.key} saw no forward pass in training mode with gradients since the last auxiliary_loss(model): "
            "call it once after each; gradient checkpointing must be the kind with use_reentrant=False"
        )
    return remedy.loss(seen, remedy.read(entry.part.options))

"""The same architecture at random initialisation: a reference for a diagnosis, not a standard of health."""

from __future__ import annotations

import copy

import torch
from torch import nn

from unsmooth.hosts.inputs import image_size
from unsmooth.spec import ModelSpec
from unsmooth.surgery.apply import apply, remove
from unsmooth.surgery.create import create_model
from unsmooth.surgery.record import applied, record_of

SEED = 0


def random_reference(model: nn.Module) -> tuple[nn.Module, str]:
    """An untrained model of the same architecture with the same remedies, and a description of how it was built.

    A model from a spec is created again, and so is a Hugging Face model from its configuration. Otherwise it is a copy
    whose layers are reset. Parameters that no layer resets (position embeddings, class tokens, layer scales) are kept,
    and the description says so.
    """
    random = torch.random.get_rng_state()
    torch.manual_seed(SEED)
    try:
        reference, how = _build(model)
    finally:
        torch.random.set_rng_state(random)
    parameter = next(model.parameters())
    return reference.to(parameter.device, parameter.dtype).eval(), how


def _build(model: nn.Module) -> tuple[nn.Module, str]:
    record = record_of(model)
    if record.host is not None:
        created = create_model(ModelSpec(record.host, applied(model).remedies))
        if image_size(created) == image_size(model):
            return created, "created from its spec"
    config = getattr(model, "config", None)
    if config is not None and not record.applied:
        return type(model)(copy.deepcopy(config)), "created from its configuration"
    copied = copy.deepcopy(model)
    remedies = applied(copied).remedies
    if remedies:
        remove(copied)
    for module in copied.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    for remedy in remedies:
        apply(copied, str(remedy))
    return copied, "a copy with reset layers (embeddings and layer scales kept)"

"""The same architecture at random start: a reference for a diagnosis, not a standard of health."""

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
    """An untrained model of the same architecture and with the same remedies, and how it was made.

    Built anew where the library can do that (a model made from a spec, or a Hugging Face one, which carries its
    configuration). Otherwise a copy whose layers draw their weights anew; what has no rule of its own for that
    (position embeddings, class tokens, layer scales) is kept, and the words say so.
    """
    random = torch.random.get_rng_state()
    torch.manual_seed(SEED)
    try:
        twin, how = _build(model)
    finally:
        torch.random.set_rng_state(random)
    parameter = next(model.parameters())
    return twin.to(parameter.device, parameter.dtype).eval(), how


def _build(model: nn.Module) -> tuple[nn.Module, str]:
    record = record_of(model)
    if record.host is not None:
        twin = create_model(ModelSpec(record.host, applied(model).remedies))
        if image_size(twin) == image_size(model):
            return twin, "built anew from its spec"
    config = getattr(model, "config", None)
    if config is not None and not record.applied:
        return type(model)(copy.deepcopy(config)), "built anew from its configuration"
    twin = copy.deepcopy(model)
    remedies = applied(twin).remedies
    if remedies:
        remove(twin)
    for module in twin.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    for part in remedies:
        apply(twin, part)
    return twin, "a copy whose layers drew their weights anew (embeddings and layer scales kept)"

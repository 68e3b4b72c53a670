"""The same architecture at random initialisation: a reference for a diagnosis, not a standard of health."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.build import create_host
from unsmooth.hosts.inputs import image_size, input_shape
from unsmooth.spec import ModelSpec, SpecItem
from unsmooth.surgery.apply import apply, remove
from unsmooth.surgery.create import create_model
from unsmooth.surgery.record import applied, record_of

SEED = 0
# Sizes of a timm model that are options of its constructor, and where the model holds them.
SIZES: dict[str, Callable[[Any], Any]] = {
    "num_classes": lambda model: model.num_classes,
    "embed_dim": lambda model: model.embed_dim,
    "depth": lambda model: len(model.blocks),
    "num_heads": lambda model: model.blocks[0].attn.num_heads,
    "img_size": lambda model: model.patch_embed.img_size[0],
    "patch_size": lambda model: model.patch_embed.patch_size[0],
    "in_chans": lambda model: image_size(model)[0],
}


@dataclass
class RandomModel:
    """An untrained model, how it was built, and the parameters that kept their trained values."""

    model: nn.Module
    how: str
    kept: list[str] = field(default_factory=list)


def random_reference(model: nn.Module) -> RandomModel:
    """An untrained model of the same architecture with the same remedies.

    It is created from the spec of the model, from its configuration (Hugging Face), or from the architecture and the
    sizes that it holds (timm), if that gives the same parameters. Otherwise it is a copy that the host's own
    initialisation resets (`init_weights`, `_init_weights`, `reset_parameters`). Parameters that none of these resets
    are listed in `kept`; the reference is approximate then.
    """
    random = torch.random.get_rng_state()
    torch.manual_seed(SEED)
    try:
        reference = _build(model)
    finally:
        torch.random.set_rng_state(random)
    parameter = next(model.parameters())
    reference.model = reference.model.to(parameter.device, parameter.dtype).eval()
    return reference


def _build(model: nn.Module) -> RandomModel:
    record = record_of(model)
    if record.host is not None:
        created = create_model(ModelSpec(record.host, applied(model).remedies))
        if input_shape(created) == input_shape(model):
            return RandomModel(created, "created from its spec")
    config = getattr(model, "config", None)
    if config is not None and not record.applied:
        return RandomModel(type(model)(copy.deepcopy(config)), "created from its configuration")
    copied = copy.deepcopy(model)
    remedies = applied(copied).remedies
    if remedies:
        remove(copied)
    rebuilt = _from_architecture(copied)
    reference = _reset(copied) if rebuilt is None else rebuilt
    for remedy in remedies:
        apply(reference.model, remedy)
    return reference


def _from_architecture(model: nn.Module) -> RandomModel | None:
    """A new model of timm's architecture with the sizes of this one, if its parameters have the same shapes."""
    config = getattr(model, "pretrained_cfg", None)
    name = config.get("architecture") if isinstance(config, dict) else None
    if not name:
        return None
    sizes: dict[str, Any] = {}
    for option, read in SIZES.items():
        try:
            sizes[option] = read(model)
        except (AttributeError, IndexError, TypeError, UnsmoothError):
            continue
    for options in (sizes, {key: sizes[key] for key in ("num_classes",) if key in sizes}):
        try:
            created = create_host(SpecItem(name, options))
        except UnsmoothError:
            continue
        if type(created) is type(model) and _shapes(created) == _shapes(model):
            return RandomModel(created, f"created as {SpecItem(name, options)}, found from its class and sizes")
    return None


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def _reset(model: nn.Module) -> RandomModel:
    """Reset a copy by the functions of the host, and list what they leave as it was."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    used = []
    for module in model.modules():
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))  # the latter: attention
        if callable(reset):
            reset()
    if callable(init := getattr(model, "init_weights", None)) and _called(init):
        used.append("init_weights")
    elif callable(init := getattr(model, "_init_weights", None)):
        try:
            model.apply(init)
            used.append("_init_weights")
        except Exception:  # a private function of the host may expect other arguments; its layers are reset already
            used.clear()
    # Constants, such as the weights of a norm layer or a new layer scale, have no other initial value.
    kept = [name for name, p in model.named_parameters() if p.numel() > 1 and p.equal(before[name]) and p.std() > 0]
    how = f"a copy reset by {' and '.join([*used, 'reset_parameters'])} of its modules"
    return RandomModel(model, how + (f"; trained values kept: {', '.join(kept[:3])}" if kept else ""), kept)


def _called(function: Any) -> bool:
    try:
        function()
    except Exception:  # a host may need arguments; its layers are reset already
        return False
    return True

"""Builds a treated model from its spec."""

from __future__ import annotations

from typing import Any

from torch import nn

from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.build import create_host
from unsmooth.spec import ModelSpec, SpecItem, parse
from unsmooth.surgery.apply import apply
from unsmooth.surgery.record import RECORD, Record


def create_model(spec: str | ModelSpec, pretrained: bool = False, **host_kwargs: Any) -> nn.Module:
    """The model that a spec names: `deit_small_patch16_224(depth=24)+attn_scale+feat_scale`.

    `host_kwargs` go to the host's own library, on top of the options in the spec. Weights are loaded into the
    host before the remedies are applied.
    """
    spec = spec if isinstance(spec, ModelSpec) else parse(spec)
    if spec.host is None:
        raise UnsmoothError(f"the spec {str(spec)!r} names no host: write HOST+{spec}")
    for part in spec.remedies:  # a mistake in a remedy is found before a large host is built
        remedies.get(part.name).read({name: value for name, value in part.options.items() if name != "blocks"})
    model = create_host(spec.host, pretrained, **host_kwargs)
    host = SpecItem(spec.host.name, {**spec.host.options, **host_kwargs})
    model.__dict__[RECORD] = Record(host if host.writable else None)
    for part in spec.remedies:
        apply(model, str(part))
    return model

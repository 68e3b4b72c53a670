"""Builds a treated model from a model spec."""

from __future__ import annotations

from typing import Any

from torch import nn

from unsmooth import remedies
from unsmooth.hosts.build import PRETRAINED, create_host
from unsmooth.spec import ModelSpec, SpecItem, parse
from unsmooth.surgery.apply import apply
from unsmooth.surgery.record import RECORD, Record


def create_model(spec: str | ModelSpec, pretrained: bool = False, **host_kwargs: Any) -> nn.Module:
    """Build a host and apply the remedies of a spec to it, from left to right.

    Args:
        spec: A model spec, `HOST(option=value)+remedy(option=value)`. HOST is a timm name, `hf:NAME`,
            `torchvision:NAME` or `open_clip:NAME`, with the options of its library and `pretrained=true`; or your own
            code, which is run: `torchhub:FOLDER:NAME` or `FILE.py:FUNCTION`.
        pretrained: Load the pretrained weights of the host before the remedies are applied.
        **host_kwargs: Options of the host, on top of those in the spec.

    Returns:
        The treated model, in training mode.

    Raises:
        UnsmoothError: The spec cannot be read, the host cannot be built, or a remedy does not fit it.

    Example:
        >>> import unsmooth
        >>> spec = "vit_tiny_patch16_224(depth=2, img_size=32, patch_size=8)+attn_scale+feat_scale"
        >>> model = unsmooth.create_model(spec, num_classes=10)
        >>> model.head.out_features
        10
    """
    return build_model(parse(spec), pretrained, **host_kwargs)


def build_model(spec: ModelSpec, pretrained: bool = False, offline: bool = False, **host_kwargs: Any) -> nn.Module:
    """Build a host from a parsed spec and apply its remedies. With `offline`, nothing is downloaded."""
    given = spec.known_host
    for remedy in spec.remedies:  # a mistake in a remedy raises before a large host is built
        remedies.options_of(remedy)
    model = create_host(given, pretrained, offline, **host_kwargs)
    options = {**given.options, **host_kwargs}
    options.pop(PRETRAINED, None)  # weights are not part of the architecture: a saved model brings its own
    host = SpecItem(given.name, options)
    model.__dict__[RECORD] = Record(host if host.writable else None)
    for remedy in spec.remedies:
        apply(model, remedy)
    return model

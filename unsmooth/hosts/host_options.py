"""Which options of a host may be set: those of its architecture.

Libraries take more options with the same call: code to trust, files and addresses to load from, caches. A spec is data,
and a saved folder may come from anyone, so options are an allow-list, read from the classes that define the host.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

from unsmooth.errors import UnknownOption, UnsmoothError, unknown

# Options of any configuration of transformers: what a model returns, and notes about the checkpoint.
CLASSES = "num_labels"
# Attention functions of torch and transformers. Other values name code on the hub.
ATTENTION, ATTENTIONS = "attn_implementation", ("eager", "sdpa")
# Options of configurations that name another model to load.
OTHER_MODEL = ("architecture", "auto_map", "backbone", "model_args", "quantization", "timm")


def check_options(host: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Raise if an option is not among the known ones."""
    known = set(known)
    for name in options:
        if name not in known:
            raise UnknownOption(str(unknown("option", name, known, owner=host)))


def constructor_options(build: Callable[..., Any]) -> set[str]:
    """Arguments of the function that builds a host of timm or torchvision, and of the classes of its module."""
    classes: Iterable[Callable[..., Any]] = (
        value for value in vars(sys.modules[build.__module__]).values() if inspect.isclass(value)
    )
    return {
        parameter.name
        for function in (build, *classes)
        for parameter in _parameters(function)
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    } - {"weights", "progress"}


def config_options(config: Any) -> set[str]:
    """Fields of a configuration of transformers that describe the architecture."""
    from transformers import PretrainedConfig

    fields = config.to_dict().keys() - PretrainedConfig().to_dict().keys()
    return {name for name in fields if not any(word in name for word in OTHER_MODEL)} | {CLASSES, ATTENTION}


def check_config(host: str, config: Any) -> None:
    """Raise if a configuration names an attention function outside torch and transformers."""
    named = getattr(config, "_attn_implementation", None)
    if named is not None and named not in ATTENTIONS:
        raise UnsmoothError(f"{host} sets {ATTENTION}={named!r}. Use one of {', '.join(ATTENTIONS)}.")


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    try:
        return inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in classes have no signature
        return ()

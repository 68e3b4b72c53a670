"""Builds the hosts of timm, Hugging Face, torchvision and open_clip, and your own.

`torchhub:FOLDER:NAME` and `FILE.py:FUNCTION` run Python code of the user. They are built only if the user names them,
on the command line or in Python; a saved folder or a recipe that names one is refused.
"""

from __future__ import annotations

import dataclasses
import difflib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from timm.layers import to_2tuple
from torch import nn

from unsmooth.errors import UnsmoothError, first_line, missing_package, unknown
from unsmooth.hosts.host_options import check_config, check_options, config_options, constructor_options
from unsmooth.hosts.user_code import run_user_code, runs_code
from unsmooth.spec import SpecItem

PRETRAINED = "pretrained"  # option of every host: load the weights of its library
# The classifier of a model type of transformers if there is one, its backbone otherwise.
AUTO = (
    "AutoModelForImageClassification",
    "AutoModelForVideoClassification",
    "AutoModelForAudioClassification",
    "AutoModel",
)
SHORT_TEXT = {"width": 8, "heads": 1, "layers": 1}  # open_clip builds a text tower too, which is not used
REACH = 3.0  # seconds in which the hub must answer
ELSEWHERE = ("hf-hub:", "hf_hub:", "local-dir:")  # names of timm whose configuration is a file, here or on the hub


def create_host(host: SpecItem, pretrained: bool = False, offline: bool = False, **options: Any) -> nn.Module:
    """Build the host of a spec. Its options, and `options` on top of them, are those of its architecture.

    `pretrained=true` among the options is the same as the argument. With `offline`, for a host that a file names,
    nothing is downloaded, no weights, and configurations only from this machine; and no code of the user is run.
    """
    library, _, name = host.name.partition(":")
    if runs_code(host.name):
        if offline:
            raise UnsmoothError(
                f"a saved folder names the host {host.name}, which is Python code and not in it. If you trust that "
                f"code, pass the host: load(path, model={host.name!r})."
            )
    elif library not in _LIBRARIES:  # names of timm may contain colons too: hf-hub:ID, local-dir:FOLDER
        library, name = "timm", host.name
    spec = SpecItem(host.name, {**host.options, **options})
    build_options = dict(spec.options)
    wanted = build_options.pop(PRETRAINED, False)
    if not isinstance(wanted, bool):
        raise UnsmoothError(f"pretrained must be true or false (got {wanted!r} in {spec}).")
    weights = not offline and (pretrained or wanted)
    from_hub = weights or name.startswith(ELSEWHERE) or (library == "hf" and "/" in name)
    try:
        with offline_without_network() if from_hub and library in ("timm", "hf", "open_clip") else nullcontext():
            if runs_code(host.name):
                return run_user_code(host.name, {**build_options, **({PRETRAINED: True} if weights else {})})
            return _LIBRARIES[library](name, weights, offline, build_options)
    except UnsmoothError:
        raise
    except Exception as error:  # a constructor may fail in any way on its options; its message names the option
        builder = "its code" if runs_code(host.name) else library
        raise UnsmoothError(f"{builder} cannot build {spec}: {type(error).__name__}: {first_line(error)}") from error


@contextmanager
def offline_without_network() -> Iterator[None]:
    """Let the hub's library use its cache only, if the hub cannot be reached: it would try again for a minute."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _reachable(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _reachable(address: str) -> bool:
    """Whether a server accepts connections. Behind a proxy, only the proxy knows."""
    parts = urlsplit(address)
    if getproxies().get(parts.scheme) or parts.hostname is None:
        return True
    try:
        socket.create_connection((parts.hostname, parts.port or 443), REACH).close()
    except OSError:
        return False
    return True


def _timm(name: str, pretrained: bool, offline: bool, options: dict[str, Any]) -> nn.Module:
    import timm

    import unsmooth.models  # noqa: F401  # registers its hosts with timm

    elsewhere = name.startswith(ELSEWHERE)
    if elsewhere and offline:
        raise UnsmoothError(
            f"a saved folder names the host {name}, which is not in it. Pass the host: load(path, model)."
        )
    if name.endswith((".pth", ".pt", ".bin", ".safetensors")):
        raise UnsmoothError(
            f"{name} is a file of weights, not a model. Name its model too: MODEL --checkpoint {name}, or"
            f" load({name!r}, MODEL)."
        )
    if not elsewhere and not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        raise UnsmoothError(
            (f"there is no folder {name!r}, and no timm model." if "/" in name else f"timm has no model {name!r}.")
            + (f" Closest names: {', '.join(near)}." if near else "")
            + " For other hosts, use hf:NAME, torchvision:NAME, open_clip:NAME, torchhub:FOLDER:NAME or"
            " FILE.py:FUNCTION."
        )
    known = constructor_options(timm.model_entrypoint("vit_base_patch16_224" if elsewhere else name))
    check_options(name, options, known)
    return timm.create_model(name, pretrained=pretrained, **options)


def _torchvision(name: str, pretrained: bool, offline: bool, options: dict[str, Any]) -> nn.Module:
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise unknown("torchvision model", name, known)
    check_options(f"torchvision:{name}", options, constructor_options(models.get_model_builder(name)))
    if pretrained:
        _check_download(f"torchvision:{name}", models.get_model_weights(name).DEFAULT.url)
    classes = options.pop("num_classes", None) if pretrained else None  # torchvision refuses it beside weights
    model: nn.Module = models.get_model(name, weights="DEFAULT" if pretrained else None, **options)
    if classes is not None:
        _replace_head(model, classes)
    return model


def _check_download(host: str, address: str) -> None:
    """Raise if weights are neither cached nor downloadable: torchvision would build the whole host first."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / address.rpartition("/")[2]
    if not file.exists() and not _reachable(address):
        raise UnsmoothError(
            f"the weights of {host} are not on this machine, and {urlsplit(address).hostname} cannot be reached. "
            f"Connect to a network, or copy them to {file}."
        )


def _replace_head(model: nn.Module, classes: int) -> None:
    """Give a pretrained host a new last layer, if it has another number of classes."""
    path, head = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    if head.out_features != classes:
        model.set_submodule(path, nn.Linear(head.in_features, classes, head.bias is not None))


def _hf(name: str, pretrained: bool, offline: bool, options: dict[str, Any]) -> nn.Module:
    try:
        import transformers
        from transformers import CONFIG_MAPPING, AutoConfig
    except ImportError as error:
        raise missing_package("a Hugging Face host", "transformers", "hf") from error
    if name in CONFIG_MAPPING and not Path(name).exists():
        if pretrained:
            raise UnsmoothError(
                f"hf:{name} is a model type without weights. For pretrained weights, use a hub id or a folder: hf:ID."
            )
        check_options(f"hf:{name}", options, config_options(CONFIG_MAPPING[name]()))
        config = CONFIG_MAPPING[name](**options)
    else:
        source = {"local_files_only": offline, "trust_remote_code": False}
        try:
            config = AutoConfig.from_pretrained(name, **source)
            check_options(f"hf:{name}", options, config_options(config))
            config = AutoConfig.from_pretrained(name, **source, **options)
        except UnsmoothError:
            raise
        except (OSError, ValueError) as error:
            raise UnsmoothError(
                f"hf:{name} is not a model type of transformers, not a local folder, and not a hub id that could be "
                f"reached ({first_line(error)})"
            ) from error
    check_config(f"hf:{name}", config)
    config.architectures = config.architectures or []  # transformers iterates over it
    for name_of_auto in AUTO:
        auto = getattr(transformers, name_of_auto)
        if type(config) in auto._model_mapping:
            build: Any = auto.from_pretrained if pretrained else auto.from_config
            given = {"pretrained_model_name_or_path": name} if pretrained else {}
            return build(**given, config=config, trust_remote_code=False)
    raise UnsmoothError(f"hf:{name} is not a vision model. Use the type of one, such as hf:vit.")


def _open_clip(name: str, pretrained: bool, offline: bool, options: dict[str, Any]) -> nn.Module:
    """The vision tower of a model of open_clip. NAME/TAG chooses the pretrained weights TAG."""
    try:
        import open_clip
    except ImportError as error:
        raise missing_package("a host of open_clip", "open_clip_torch", "open_clip") from error
    name, _, tag = name.partition("/")
    if name not in open_clip.list_models():
        raise unknown("open_clip model", name, open_clip.list_models())
    if pretrained:
        tags = open_clip.list_pretrained_tags_by_model(name)
        if tag not in tags:
            raise UnsmoothError(
                f"open_clip:{name} has these pretrained weights: {', '.join(tags) or 'none'}. "
                f"Name one: open_clip:{name}/TAG."
            )
        if options:
            raise UnsmoothError(
                f"pretrained weights fix the architecture of open_clip:{name} (got {', '.join(options)})."
            )
        return _vision_tower(open_clip.create_model(name, pretrained=tag))
    config = open_clip.get_model_config(name)
    vision = config["vision_cfg"]
    known = {field.name for field in dataclasses.fields(open_clip.CLIPVisionCfg)}
    check_options(f"open_clip:{name}", options, {key for key in known if not key.startswith("timm_")})
    vision.update(options, timm_model_pretrained=False)
    settings = {key: value for key, value in config.items() if key in ("embed_dim", "quick_gelu")}
    return _vision_tower(open_clip.CLIP(**settings, vision_cfg=vision, text_cfg=SHORT_TEXT))


def _vision_tower(model: Any) -> nn.Module:
    """The vision tower, with the preprocessing of open_clip in the form of timm's."""
    import open_clip

    tower: nn.Module = model.visual
    shown = open_clip.get_model_preprocess_cfg(model)
    mean, std = shown.get("mean", open_clip.OPENAI_DATASET_MEAN), shown.get("std", open_clip.OPENAI_DATASET_STD)
    size = to_2tuple(getattr(tower, "image_size", 224))
    tower.pretrained_cfg = {"input_size": (3, *size), "mean": mean, "std": std, "interpolation": "bicubic"}  # type: ignore[assignment]
    return tower


_LIBRARIES: dict[str, Callable[[str, bool, bool, dict[str, Any]], nn.Module]] = {
    "timm": _timm,
    "hf": _hf,
    "torchvision": _torchvision,
    "open_clip": _open_clip,
}

"""A segmenter for a spec: the host built for the crop, without its classifier, from scratch or from any weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unsmooth.data.sampling import derive_seed
from unsmooth.errors import UnsmoothError
from unsmooth.recipes.recipe import Recipe
from unsmooth.spec import ModelSpec, parse
from unsmooth.surgery.create import create_model
from unsmooth.surgery.storage import WEIGHTS, fill_for_tuning, read_weights
from unsmooth.tasks.base import TaskRequest
from unsmooth.tasks.model_factory import WORDS
from unsmooth.tasks.segmentation.model import Segmenter, check_any_size
from unsmooth.tasks.segmentation.options import CROP, SegmentationOptions

# How hosts of timm are told that images have other sizes too; one without any such word takes them anyway, or never.
ANY_SIZE: tuple[dict[str, Any], ...] = ({"strict_img_size": False}, {"dynamic_img_size": True}, {})


def resolve(spec: str, options: SegmentationOptions, recipe: Recipe) -> SegmentationOptions:
    """The options with all sizes filled in, and the spec checked as far as that goes without building it."""
    host = _parsed(spec).host
    assert host is not None
    library = host.name.partition(":")[0]
    if library in WORDS and library != "timm" and ":" in host.name:
        raise UnsmoothError(f"segmentation takes hosts of timm, and {host.name} is one of {library}")
    own = host.options.get("img_size", 0)
    if not isinstance(own, int):
        raise UnsmoothError(f"segmentation takes square crops: img_size must be one number, not {own}")
    asked = options.crop or recipe.image_size
    if own and asked and own != asked:
        raise UnsmoothError(
            f"the spec says img_size={own} and crop is {asked}: they must be the same; give one of them"
        )
    crop = own or asked or CROP
    return replace(options, crop=crop, short=options.short or crop)


def build(request: TaskRequest, options: SegmentationOptions) -> Segmenter:
    """Build a segmenter to train. Initial weights depend on the host and the seed, not on the remedies."""
    parsed, recipe, seed = _parsed(request.spec), request.recipe, request.seed
    assert parsed.host is not None
    wanted = {"dropout": recipe.dropout, "drop_path": recipe.drop_path}
    drops = {
        name: value
        for what, value in wanted.items()
        for name in WORDS["timm"][what]
        if value and name not in parsed.host.options
    }
    backbone, how = _backbone(parsed, options, request.pretrained, drops, seed)
    if request.checkpoint is not None:
        _fill(backbone, parsed, request.checkpoint, {**how, **drops})
    torch.manual_seed(derive_seed(seed))  # remedies may have drawn: the head must not depend on them
    model = Segmenter(backbone, options)
    if options.mode == "whole":
        check_any_size(model, request.spec)
    return model


def _backbone(
    spec: ModelSpec, options: SegmentationOptions, pretrained: bool, drops: dict[str, float], seed: int
) -> tuple[nn.Module, dict[str, Any]]:
    """The treated host for crops of the asked size, and the words that made it so."""
    freedom = ANY_SIZE if options.mode == "whole" else ({},)
    tries: list[dict[str, Any]] = [{"img_size": options.window, **words} for words in freedom]
    for how in (*tries, {}):
        torch.manual_seed(seed)
        try:
            return create_model(spec, pretrained, **{**drops, **how, "num_classes": 0}), how
        except UnsmoothError as error:
            unknown = isinstance(error.__cause__, TypeError) and any(f"'{name}'" in str(error) for name in how)
            if not unknown:  # any other reason is the user's to know; hosts without img_size take images of any size
                raise
    raise AssertionError("a host without options of ours is always built or refused")


def _fill(backbone: nn.Module, spec: ModelSpec, path: Path, how: dict[str, Any]) -> None:
    """Weights of a classifier, or of a host without a head, into the host; positions are resampled by timm."""
    if not path.exists():
        raise UnsmoothError(f"{path} does not exist: a checkpoint is a file, or a folder written by save")
    names = read_weights(path / WEIGHTS if path.is_dir() else path).keys()
    settings: Any = getattr(backbone, "pretrained_cfg", None) or {}
    heads = settings.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    if not any(name.removeprefix("module.").startswith(f"{head}.") for name in names for head in heads):
        fill_for_tuning(backbone, path, 0)
        return
    state = torch.random.get_rng_state()
    donor: Any = create_model(spec, **how)  # with a classifier, so that the file fits; it is thrown away
    torch.random.set_rng_state(state)
    fill_for_tuning(donor, path, donor.num_classes)
    given = donor.state_dict()
    backbone.load_state_dict({name: given[name] for name in backbone.state_dict()})


def _parsed(spec: str) -> ModelSpec:
    parsed = parse(spec)
    if parsed.host is None:
        raise UnsmoothError(f"the spec {spec!r} names no host: write HOST+{spec}")
    return parsed

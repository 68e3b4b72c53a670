"""Build a segmenter for a spec: the host for the crop size, without classifier, from scratch or from weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unsmooth.data.sampling import derive_seed
from unsmooth.errors import UnknownOption, UnsmoothError
from unsmooth.recipes.recipe import Recipe
from unsmooth.spec import ModelSpec, parse
from unsmooth.surgery.create import create_model
from unsmooth.surgery.storage import WEIGHTS, fill_for_tuning, read_weights
from unsmooth.tasks.base import TaskRequest
from unsmooth.tasks.model_factory import OPTION_NAMES
from unsmooth.tasks.segmentation.model import Segmenter, check_any_size
from unsmooth.tasks.segmentation.options import CROP, SegmentationOptions

# Options by which timm hosts accept any image size; hosts without such an option always or never do.
ANY_SIZE: tuple[dict[str, Any], ...] = ({"strict_img_size": False}, {"dynamic_img_size": True}, {})


def resolve(spec: str | ModelSpec, options: SegmentationOptions, recipe: Recipe) -> SegmentationOptions:
    """Options with all sizes set; the spec is checked as far as possible without building the host."""
    host = parse(spec).known_host
    library = host.name.partition(":")[0]
    if library in OPTION_NAMES and library != "timm" and ":" in host.name:
        raise UnsmoothError(f"segmentation needs a timm host (got {host.name})")
    own = host.options.get("img_size", 0)
    if not isinstance(own, int):
        raise UnsmoothError(f"segmentation needs square crops: img_size must be one number (got {own})")
    requested = options.crop or recipe.image_size
    if own and requested and own != requested:
        raise UnsmoothError(f"img_size={own} of the spec and crop={requested} must be equal. Use one of them.")
    crop = own or requested or CROP
    return replace(options, crop=crop, short=options.short or crop)


def build(request: TaskRequest, options: SegmentationOptions) -> Segmenter:
    """Build a segmenter to train. Initial weights depend on the host and the seed, not on the remedies."""
    parsed, recipe, seed = parse(request.spec), request.recipe, request.seed
    rates = {"dropout": recipe.dropout, "drop_path": recipe.drop_path}
    drops = {
        name: value
        for kind, value in rates.items()
        for name in OPTION_NAMES["timm"][kind]
        if value and name not in parsed.known_host.options
    }
    backbone, size_options = _backbone(parsed, options, request.pretrained, drops, seed)
    if request.checkpoint is not None:
        _load_weights(backbone, parsed, request.checkpoint, {**size_options, **drops})
    torch.manual_seed(derive_seed(seed))  # so that the head does not depend on the remedies
    model = Segmenter(backbone, options)
    if options.mode == "whole":
        check_any_size(model, str(request.spec))
    return model


def _backbone(
    spec: ModelSpec, options: SegmentationOptions, pretrained: bool, drops: dict[str, float], seed: int
) -> tuple[nn.Module, dict[str, Any]]:
    """The treated host for crops of the given size, and the options that set the size."""
    variants = ANY_SIZE if options.mode == "whole" else ({},)
    attempts: list[dict[str, Any]] = [{"img_size": options.window, **variant} for variant in variants]
    for size_options in (*attempts, {}):
        torch.manual_seed(seed)
        try:
            return create_model(spec, pretrained, **{**drops, **size_options, "num_classes": 0}), size_options
        except UnsmoothError as error:
            # The error may be due to our options: hosts without img_size accept images of any size.
            ours = isinstance(error, UnknownOption) or isinstance(error.__cause__, TypeError)
            if not size_options or not ours:
                raise
    raise AssertionError("the last attempt returns or raises")


def _load_weights(backbone: nn.Module, spec: ModelSpec, path: Path, options: dict[str, Any]) -> None:
    """Load weights of a classifier, or of a host without a head; timm resamples position embeddings."""
    if not path.exists():
        raise UnsmoothError(f"{path} does not exist. Use a checkpoint file, or a folder written by save.")
    names = read_weights(path / WEIGHTS if path.is_dir() else path).keys()
    settings: Any = getattr(backbone, "pretrained_cfg", None) or {}
    heads = settings.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    if not any(name.removeprefix("module.").startswith(f"{head}.") for name in names for head in heads):
        fill_for_tuning(backbone, path, 0)
        return
    state = torch.random.get_rng_state()
    donor: Any = create_model(spec, **options)  # with a classifier, so that the file fits
    torch.random.set_rng_state(state)
    fill_for_tuning(donor, path, donor.num_classes)
    weights = donor.state_dict()
    backbone.load_state_dict({name: weights[name] for name in backbone.state_dict()})

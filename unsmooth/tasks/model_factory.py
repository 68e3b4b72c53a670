"""The model of a run: built for its data, with the recipe's regularisation, from scratch or from any checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.build import create_host
from unsmooth.recipes.recipe import Recipe
from unsmooth.spec import ModelSpec, SpecItem, parse
from unsmooth.surgery.create import create_model
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.record import PREFIX
from unsmooth.surgery.storage import fill_for_tuning, load

# What each library calls the number of classes, dropout and stochastic depth.
WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "timm": {
        "classes": ("num_classes",), "dropout": ("pos_drop_rate", "proj_drop_rate"), "drop_path": ("drop_path_rate",),
    },
    "hf": {"classes": ("num_labels",), "dropout": ("hidden_dropout_prob",), "drop_path": ("drop_path_rate",)},
    "torchvision": {"classes": ("num_classes",), "dropout": ("dropout",), "drop_path": ("stochastic_depth_prob",)},
}  # fmt: skip

# Tokens and positions, which timm's hosts ask not to decay and those of other libraries do not speak of.
POSITIONS = (
    "class_token", "cls_token", "dist_token", "distillation_token", "mask_token", "pos_embed", "pos_embedding",
    "position_embeddings", "reg_token", "register_tokens",
)  # fmt: skip


def build(
    spec: str,
    classes: int,
    recipe: Recipe,
    seed: int,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
) -> nn.Module:
    """A model to train. The same host and seed give the same starting weights, whatever remedies are on it."""
    parsed = parse(spec)
    options = _host_options(parsed, classes, recipe)
    torch.manual_seed(seed)
    model = create_model(parsed, pretrained, **options)
    if checkpoint is not None:
        replaced = fill_for_tuning(model, Path(checkpoint), classes)
        if replaced:
            warnings.warn(
                f"{checkpoint}: its head is for other classes; {', '.join(replaced)} start anew", stacklevel=2
            )
    return model


def build_teacher(recipe: Recipe, classes: int) -> nn.Module | None:
    """The teacher of a distillation, ready and frozen."""
    if not recipe.teacher:
        return None
    if recipe.teacher_checkpoint:
        name = _words(parse(recipe.teacher))["classes"][0]
        given = parse(recipe.teacher)
        assert given.host is not None
        host = SpecItem(given.host.name, {name: classes, **given.host.options})
        teacher = load(recipe.teacher_checkpoint, str(ModelSpec(host, given.remedies)))
    else:
        teacher = create_model(recipe.teacher, pretrained=True)
    return teacher.eval().requires_grad_(False)


def without_decay(model: nn.Module) -> set[str]:
    """Parameters that never decay beside those that timm leaves out by itself: the host's own wish, and remedies'."""
    wish: Iterable[str] = getattr(model, "no_weight_decay", lambda: ())()
    steps = {name: name.split(".") for name, _ in model.named_parameters()}
    ours = (name for name, path in steps.items() if any(step.startswith(PREFIX) for step in path))
    return {*wish, *ours, *(name for name, path in steps.items() if path[-1] in POSITIONS)}


def check_classes(model_classes: int, classes: int, spec: str, data: str) -> None:
    if classes > model_classes:
        raise UnsmoothError(
            f"{data} has {classes} classes and {spec} is built for {model_classes}; leave the number out of the "
            f"spec, or give at least {classes}"
        )


def check_patches(model: nn.Module, picture: tuple[int, int], spec: str, data: str) -> None:
    """Refuse images that are smaller than one patch of the host."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    patch = first.stride if first is not None and first.kernel_size == first.stride else (1, 1)
    if picture[0] < patch[1] or picture[1] < patch[0]:
        raise UnsmoothError(
            f"images of {data} are {picture[0]} × {picture[1]} pixels, less than one patch of {spec} "
            f"({patch[1]} × {patch[0]}); build the host for them: img_size=…, patch_size=…"
        )


def _words(spec: ModelSpec) -> dict[str, tuple[str, ...]]:
    assert spec.host is not None
    library = spec.host.name.partition(":")[0]
    return WORDS.get(library, WORDS["timm"])


def _host_options(spec: ModelSpec, classes: int, recipe: Recipe) -> dict[str, Any]:
    """The options that data and recipe add to a host's own; what the spec says itself stays."""
    if spec.host is None:
        raise UnsmoothError(f"the spec {str(spec)!r} names no host: write HOST+{spec}")
    words, given = _words(spec), spec.host.options
    wanted: dict[str, float] = {"classes": classes, "dropout": recipe.dropout, "drop_path": recipe.drop_path}
    if recipe.deep_blocks and recipe.deep_dropout:
        depth = len(anatomy_of(create_host(spec.host)).blocks)
        if depth >= recipe.deep_blocks:
            wanted["dropout"] = recipe.deep_dropout
    named = next((given[name] for name in words["classes"] if name in given), None)
    if named is not None:
        check_classes(named, classes, str(spec.host), "the data")
    return {
        name: value
        for what, value in wanted.items()
        for name in words[what]
        if name not in given and (value or what == "classes")
    }

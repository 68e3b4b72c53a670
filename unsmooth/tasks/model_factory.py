"""Build the model of a run: for the classes of its data, with the recipe's regularisation, and initial weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.build import create_host
from unsmooth.hosts.user_code import runs_code
from unsmooth.recipes.recipe import Recipe
from unsmooth.seam.patched import PREFIX
from unsmooth.spec import ModelSpec, SpecItem, parse
from unsmooth.surgery.create import create_model
from unsmooth.surgery.plan import anatomy_of
from unsmooth.surgery.storage import fill_for_tuning, load

# Names of the options for the number of classes, dropout and stochastic depth, by library.
OPTION_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "timm": {
        "classes": ("num_classes",), "dropout": ("pos_drop_rate", "proj_drop_rate"), "drop_path": ("drop_path_rate",),
    },
    "hf": {"classes": ("num_labels",), "dropout": ("hidden_dropout_prob",), "drop_path": ("drop_path_rate",)},
    "torchvision": {"classes": ("num_classes",), "dropout": ("dropout",), "drop_path": ("stochastic_depth_prob",)},
}  # fmt: skip

# Tokens and position embeddings, which timm hosts exclude from weight decay and other libraries do not mention.
UNDECAYED = (
    "class_token", "cls_token", "dist_token", "distillation_token", "mask_token", "pos_embed", "pos_embedding",
    "position_embeddings", "reg_token", "register_tokens",
)  # fmt: skip


def build(
    spec: str | ModelSpec,
    classes: int,
    recipe: Recipe,
    seed: int,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
) -> nn.Module:
    """Build a model to train. Initial weights depend on the host and the seed, not on the remedies.

    Args:
        spec: Model spec.
        classes: Number of classes.
        recipe: Recipe, for dropout and stochastic depth.
        seed: Seed of the initial weights.
        checkpoint: Weights to start from; a head for other classes is replaced, with a warning.
        pretrained: Whether to start from the library's pretrained weights.

    Returns:
        The model on the CPU.
    """
    if checkpoint is not None and pretrained:
        raise UnsmoothError("give either pretrained weights or a checkpoint, not both.")
    parsed = parse(spec)
    options = _host_options(parsed, classes, recipe)
    torch.manual_seed(seed)
    model = create_model(parsed, pretrained, **options)
    if checkpoint is not None:
        replaced = fill_for_tuning(model, Path(checkpoint), classes)
        if replaced:
            warnings.warn(
                f"{checkpoint} has a head for other classes. Initialised randomly: {', '.join(replaced)}.", stacklevel=2
            )
    return model


def build_teacher(recipe: Recipe, classes: int) -> nn.Module | None:
    """Build the teacher for distillation, frozen and in eval mode; None if there is none."""
    if not recipe.teacher:
        return None
    spec = parse(recipe.teacher)
    host = spec.known_host
    if runs_code(host.name):
        raise UnsmoothError(f"the recipe names the teacher {spec}, which is Python code. Recipes run no code.")
    if recipe.teacher_checkpoint:
        name = _option_names(spec)["classes"][0]
        host = SpecItem(host.name, {name: classes, **host.options})
        teacher = load(recipe.teacher_checkpoint, ModelSpec(host, spec.remedies))
    else:
        teacher = create_model(spec, pretrained=True)
    return teacher.eval().requires_grad_(False)


def without_decay(model: nn.Module) -> set[str]:
    """Parameters without weight decay, in addition to 1-D ones: those the host excludes, and those of remedies."""
    excluded: Iterable[str] = getattr(model, "no_weight_decay", lambda: ())()
    steps = {name: name.split(".") for name, _ in model.named_parameters()}
    ours = (name for name, path in steps.items() if any(step.startswith(PREFIX) for step in path))
    return {*excluded, *ours, *(name for name, path in steps.items() if path[-1] in UNDECAYED)}


def check_classes(model_classes: int, classes: int, spec: str, data: str) -> None:
    if classes > model_classes:
        raise UnsmoothError(
            f"{data} has {classes} classes, more than the {model_classes} of {spec}. Remove the number from the spec, "
            f"or use at least {classes}."
        )


def check_patches(model: nn.Module, size: tuple[int, int], spec: str, data: str) -> None:
    """Raise if images of this width and height are smaller than one patch of the host."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    patch = first.stride if first is not None and first.kernel_size == first.stride else (1, 1)
    if size[0] < patch[1] or size[1] < patch[0]:
        raise UnsmoothError(
            f"images of {data} have {size[0]} × {size[1]} pixels, fewer than one patch of {spec} "
            f"({patch[1]} × {patch[0]}). Use img_size=… and patch_size=… in the spec."
        )


def _option_names(spec: ModelSpec) -> dict[str, tuple[str, ...]]:
    library = spec.known_host.name.partition(":")[0]
    return OPTION_NAMES.get(library, OPTION_NAMES["timm"])


def _host_options(spec: ModelSpec, classes: int, recipe: Recipe) -> dict[str, Any]:
    """Host options from the data and the recipe, except those that the spec sets."""
    host = spec.known_host
    names, own = _option_names(spec), host.options
    values: dict[str, float] = {"classes": classes, "dropout": recipe.dropout, "drop_path": recipe.drop_path}
    if recipe.deep_blocks and recipe.deep_dropout:
        depth = len(anatomy_of(create_host(host)).blocks)
        if depth >= recipe.deep_blocks:
            values["dropout"] = recipe.deep_dropout
    classes_in_spec = next((own[name] for name in names["classes"] if name in own), None)
    if classes_in_spec is not None:
        check_classes(classes_in_spec, classes, str(host), "the data")
    return {
        name: value
        for kind, value in values.items()
        for name in names[kind]
        if name not in own and (value or kind == "classes")
    }

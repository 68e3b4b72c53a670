"""Training recipes: every choice that decides the result of a run, as one value that is read from and written to TOML.

Settings that do not change the result (workers, folders, devices) are not part of a recipe.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

from unsmooth.errors import unknown
from unsmooth.utils.files import read_toml
from unsmooth.utils.options import Pair, merge_options, option, options, read_options, to_json

Settings = TypeVar("Settings")


@options
class Recipe:
    """All hyper-parameters of a training run.

    Every field has a default. `unsmooth list recipes` prints the fields with the values of the bundled recipes.

    Raises:
        UnsmoothError: If a value is out of range, or if two fields contradict each other.

    Example:
        >>> from unsmooth.recipes.recipe import Recipe
        >>> Recipe(epochs=10, lr=5e-4, lr_base_batch=512, batch_size=1024).scaled_lr
        0.001
    """

    label = "recipe"

    epochs: int = option("passes over the training images", default=20, low=1)
    batch_size: int = option("images per optimizer step, summed over all processes", default=64, low=1)
    train_images: int = option("training images to use, evenly spaced; 0: all", default=0, low=0)
    val_images: int = option("validation images to use, evenly spaced; 0: all", default=0, low=0)
    validate_every: int = option("epochs between validations; the last epoch is always validated", default=1, low=1)
    accumulate: int = option("gradient accumulation: forward passes per step and process", default=1, low=1)

    optimizer: str = option("name of a timm optimizer", default="adamw")
    beta2: float = option("second beta of Adam-like optimizers; 0: the optimizer's default", default=0.0, low=0, high=1)
    lr: float = option("learning rate", default=1e-3, above=0)
    lr_base_batch: int = option(
        "batch size that lr refers to; lr is scaled linearly to batch_size; 0: no scaling", default=0, low=0
    )
    weight_decay: float = option(
        "weight decay of matrices (never of biases, norms or remedy parameters)", default=0.05, low=0
    )
    layer_decay: float = option("layer-wise lr decay, from the head down; 0: off", default=0.0, low=0, high=1)
    clip_grad: float = option("maximum gradient norm; 0: no clipping", default=0.0, low=0)
    schedule: Literal["cosine", "tanh", "poly"] = option("timm learning rate schedule", default="cosine")
    warmup_epochs: int = option("epochs of linear warm-up, included in `epochs`", default=0, low=0)
    warmup_lr: float = option("learning rate at the start of the warm-up", default=1e-6, low=0)
    min_lr: float = option("learning rate at the end", default=0.0, low=0)

    label_smoothing: float = option("label smoothing", default=0.0, low=0, high=1)
    mixup: float = option("mixup alpha; 0: off", default=0.0, low=0)
    cutmix: float = option("cutmix alpha; 0: off", default=0.0, low=0)
    mixup_prob: float = option("probability of mixup or cutmix per batch", default=1.0, low=0, high=1)
    switch_prob: float = option("probability of cutmix instead of mixup if both are on", default=0.5, low=0, high=1)
    distillation: Literal["none", "hard", "soft"] = option("DeiT distillation", default="none")
    teacher: str = option("model spec of the teacher", default="")
    teacher_checkpoint: str = option("weights of the teacher (default: its library's pretrained weights)", default="")
    distillation_alpha: float = option("weight of the teacher's term in the loss", default=0.5, low=0, high=1)
    distillation_tau: float = option("temperature of soft distillation", default=1.0, above=0)

    image_size: int = option("image side, for hosts that accept any; 0: the host's own", default=0, low=0)
    crop_scale: Pair = option("area range of random crops; 1, 1: no crop", default=(0.08, 1.0))
    crop_ratio: Pair = option("aspect ratio range of random crops", default=(0.75, 4 / 3))
    hflip: float = option("probability of a horizontal flip", default=0.5, low=0, high=1)
    color_jitter: float = option("strength of colour jitter; ignored if auto_augment is set", default=0.0, low=0)
    auto_augment: str = option("timm policy string: RandAugment, AugMix or AutoAugment", default="")
    erasing: float = option("probability of random erasing", default=0.0, low=0, high=1)
    erasing_mode: Literal["pixel", "rand", "const"] = option("fill of erased rectangles", default="pixel")
    repeated_augmentation: int = option("augmented copies of each drawn image per epoch; 0: off", default=0, low=0)

    drop_path: float = option("stochastic depth rate of the host", default=0.0, low=0, high=1)
    dropout: float = option(
        "dropout rate of the host, after position embeddings and projections", default=0.0, low=0, high=1
    )
    deep_blocks: int = option("minimum number of blocks for deep_dropout; 0: never", default=0, low=0)
    deep_dropout: float = option("dropout rate of hosts with at least deep_blocks blocks", default=0.0, low=0, high=1)

    ema: float = option(
        "decay of the weight average, which is then evaluated and saved; 0: off", default=0.0, low=0, high=1
    )
    amp: Literal["none", "auto", "bfloat16", "float16"] = option(
        "autocast precision; auto: bfloat16 on a GPU, none on a CPU", default="none"
    )
    compile: bool = option("use torch.compile", default=False)
    vitals: str = option(
        "vitals to monitor, comma-separated", default="token_cosine,high_frequency_ratio,effective_rank"
    )
    vitals_every: int = option("epochs between measurements of the vitals; 0: never", default=0, low=0)
    vitals_images: int = option("validation images that the vitals are measured on", default=16, low=2)

    def __post_init__(self) -> None:
        from unsmooth.diagnosis import registry  # imports torch, which --help does not need

        registry.select(self.vitals)
        for name in ("crop_scale", "crop_ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name} must be two numbers above 0, the smaller first (got {low:g}, {high:g})")
        if self.warmup_epochs > self.epochs:
            raise ValueError(
                f"warmup_epochs must be at most epochs, {self.epochs} (got {self.warmup_epochs}). Use "
                "warmup_epochs=0 (--warmup-epochs)"
            )
        if self.mixes and self.batch_size % 2:
            raise ValueError(f"mixup and cutmix need an even batch_size (got {self.batch_size})")
        if (self.distillation == "none") != (not self.teacher):
            raise ValueError(
                f"distillation and teacher must be set together (got {self.distillation!r} and {self.teacher!r}). "
                "Use distillation=hard or soft with a teacher"
            )

    @property
    def scaled_lr(self) -> float:
        """Learning rate for this batch size."""
        return self.lr * self.batch_size / self.lr_base_batch if self.lr_base_batch else self.lr

    @property
    def mixes(self) -> bool:
        """Whether mixup or cutmix is on."""
        return bool(self.mixup or self.cutmix)

    def to_json(self) -> dict[str, Any]:
        """Fields as plain JSON values."""
        return to_json(self)


def list_recipes() -> list[str]:
    """Names of the bundled recipes."""
    return sorted(p.name.removesuffix(".toml") for p in files("unsmooth.recipes").iterdir() if p.name.endswith(".toml"))


def load_recipe(name: str | Path, fields: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe.

    Args:
        name: Name of a bundled recipe, or path of a .toml file.
        fields: Values that replace those of the file.

    Returns:
        The recipe; fields that neither the file nor `fields` names have their default.

    Raises:
        UnsmoothError: If there is no such recipe, or if a field or a value is not valid.

    Example:
        >>> from unsmooth.recipes.recipe import load_recipe
        >>> load_recipe("deit", {"epochs": 100}).mixup
        0.8
    """
    path: Any = Path(name)
    if str(name) in list_recipes():
        path = files("unsmooth.recipes") / f"{name}.toml"
    elif path.suffix != ".toml":
        raise unknown("recipe", str(name), list_recipes())
    values = read_toml(path, "recipe")
    return read_options(Recipe, {**values, **(fields or {})}, "recipe")


def resolve_fields(
    cls: type[Settings], settings: Settings | None, recipe: str | Path | Recipe, fields: Mapping[str, Any]
) -> tuple[Settings, Recipe]:
    """Settings and recipe of a command, with fields of both replaced by name.

    A name of both is one of the settings.
    """
    own = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    of_recipe = [field.name for field in dataclasses.fields(Recipe)]
    label = getattr(cls, "label", cls.__name__)
    for name in fields:
        if name not in own and name not in of_recipe:
            raise unknown("setting or recipe field", name, [*own, *of_recipe], owner=label)
    changed = merge_options(cls, settings, {name: value for name, value in fields.items() if name in own}, label)
    rest = {name: value for name, value in fields.items() if name not in own}
    if isinstance(recipe, Recipe):
        return changed, merge_options(Recipe, recipe, rest, "recipe")
    return changed, load_recipe(recipe, rest)


def write_recipe(recipe: Recipe) -> str:
    """Text of the .toml file of a recipe."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in recipe.to_json().items())


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Fields in which two recipes differ, as text."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"{name} was {old.get(name)!r} and is {new.get(name)!r}" for name in names]

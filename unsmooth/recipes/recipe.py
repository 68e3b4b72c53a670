"""A recipe: every choice that decides what a training run gives, as one value that goes to a file and back.

What does not change the result (workers, folders, devices) is no part of it.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from unsmooth.diagnosis import registry
from unsmooth.errors import UnsmoothError, unknown


def choice(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    words: Iterable[str] = (),
) -> Any:
    """A field of a recipe: its default, what it means, and the values it may have."""
    return dataclasses.field(
        default=default, metadata={"help": help, "low": low, "high": high, "above": above, "words": tuple(words)}
    )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    epochs: int = choice(20, "passes over the training images", low=1)
    batch_size: int = choice(64, "images for one step of the optimiser, over all processes", low=1)
    train_images: int = choice(0, "use so many training images, spread over the data; 0: all", low=0)
    val_images: int = choice(0, "use so many validation images, spread over the data; 0: all", low=0)
    validate_every: int = choice(1, "epochs between two validations; the last epoch always has one", low=1)
    accumulate: int = choice(1, "parts that each process runs its share of a batch in, one after the other", low=1)

    optimizer: str = choice("adamw", "any optimiser of timm")
    beta2: float = choice(0.0, "second beta of Adam and its kin; 0: the optimiser's own", low=0, high=1)
    lr: float = choice(1e-3, "learning rate", above=0)
    lr_base_batch: int = choice(0, "lr is for a batch of so many images and scaled to batch_size; 0: as given", low=0)
    weight_decay: float = choice(0.05, "of matrices; never of biases, norms or a remedy's parameters", low=0)
    layer_decay: float = choice(0.0, "factor of lr from block to block, from the head down; 0: off", low=0, high=1)
    clip_grad: float = choice(0.0, "largest norm of the gradient; 0: no limit", low=0)
    schedule: str = choice("cosine", "any schedule of timm that needs no metric",
                           words=("cosine", "tanh", "poly"))  # fmt: skip
    warmup_epochs: int = choice(0, "epochs of linear warm-up, within `epochs`", low=0)
    warmup_lr: float = choice(1e-6, "learning rate at the start of the warm-up", low=0)
    min_lr: float = choice(0.0, "learning rate at the end", low=0)

    label_smoothing: float = choice(0.0, "share of the target spread over all classes", low=0, high=1)
    mixup: float = choice(0.0, "alpha of mixup; 0: off", low=0)
    cutmix: float = choice(0.0, "alpha of cutmix; 0: off", low=0)
    mixup_prob: float = choice(1.0, "share of batches that are mixed", low=0, high=1)
    switch_prob: float = choice(0.5, "share of mixed batches that get cutmix where both are on", low=0, high=1)
    distillation: str = choice("none", "DeiT's: none, hard or soft", words=("none", "hard", "soft"))
    teacher: str = choice("", "spec of the teacher")
    teacher_checkpoint: str = choice("", "its weights; without: its library's pretrained ones")
    distillation_alpha: float = choice(0.5, "weight of the teacher's part of the loss", low=0, high=1)
    distillation_tau: float = choice(1.0, "temperature of soft distillation", above=0)

    image_size: int = choice(0, "side of the images, for hosts that take any size; 0: the host's own", low=0)
    crop_scale: tuple[float, float] = choice((0.08, 1.0), "area of a random crop, from and to; 1, 1: no crop")
    crop_ratio: tuple[float, float] = choice((0.75, 4 / 3), "its aspect, from and to")
    hflip: float = choice(0.5, "share of images that are mirrored", low=0, high=1)
    color_jitter: float = choice(0.0, "strength of colour jitter; not used beside auto_augment", low=0)
    auto_augment: str = choice("", "timm's RandAugment, AugMix or AutoAugment string")
    erasing: float = choice(0.0, "share of images with a random rectangle erased", low=0, high=1)
    erasing_mode: str = choice("pixel", "what fills the rectangle", words=("pixel", "rand", "const"))
    repeated_augmentation: int = choice(0, "copies of an image in an epoch, in one batch if it is large; 0: off", low=0)

    drop_path: float = choice(0.0, "stochastic depth of the host", low=0, high=1)
    dropout: float = choice(0.0, "dropout of the host, on positions and behind each layer", low=0, high=1)
    deep_blocks: int = choice(0, "hosts of so many blocks or more get deep_dropout; 0: none do", low=0)
    deep_dropout: float = choice(0.0, "their dropout", low=0, high=1)

    ema: float = choice(0.0, "decay of the moving average of weights, which is then what counts; 0: off", low=0, high=1)
    amp: str = choice("none", "precision of autocast: none, bfloat16, float16, or auto (bfloat16 on a GPU)",
                      words=("none", "auto", "bfloat16", "float16"))  # fmt: skip
    compile: bool = choice(False, "torch.compile")
    vitals: str = choice("token_cosine,high_frequency_ratio,effective_rank", "vitals that are followed")
    vitals_every: int = choice(0, "epochs between two looks at them; 0: never", low=0)
    vitals_images: int = choice(16, "validation images that they are measured on", low=2)

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))
        registry.select(self.vitals)
        for name in ("crop_scale", "crop_ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise UnsmoothError(f"recipe: {name} must be two numbers above 0, the smaller first, not {low}, {high}")
        if self.warmup_epochs > self.epochs:
            raise UnsmoothError(
                f"recipe: warmup_epochs ({self.warmup_epochs}) must be at most epochs ({self.epochs}): try "
                "--warmup-epochs 0"
            )
        if (self.mixup or self.cutmix) and self.batch_size % 2:
            raise UnsmoothError(
                f"recipe: mixup and cutmix pair images, so batch_size must be even, not {self.batch_size}"
            )
        if (self.distillation == "none") != (not self.teacher):
            raise UnsmoothError("recipe: distillation needs a teacher and a teacher needs distillation = hard or soft")

    @property
    def scaled_lr(self) -> float:
        """The learning rate of this batch size."""
        return self.lr * self.batch_size / self.lr_base_batch if self.lr_base_batch else self.lr

    @property
    def mixes(self) -> bool:
        return bool(self.mixup or self.cutmix)

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def list_recipes() -> list[str]:
    """Names of the recipes that come along."""
    return sorted(p.name.removesuffix(".toml") for p in files("unsmooth.recipes").iterdir() if p.name.endswith(".toml"))


def load_recipe(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe by name, or from a .toml file, with some fields replaced (text is read as the field's type)."""
    path: Any = Path(name)
    if str(name) in list_recipes():
        path = files("unsmooth.recipes") / f"{name}.toml"
    elif path.suffix != ".toml":
        raise unknown("recipe", str(name), list_recipes())
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnsmoothError(f"cannot read the recipe {path}: {reason}") from error
    return recipe_of({**given, **(overrides or {})})


def recipe_of(given: Mapping[str, Any]) -> Recipe:
    """A recipe from fields by name; a name that it does not have is refused."""
    known = [field.name for field in fields(Recipe)]
    for name in given:
        if name not in known:
            raise unknown("recipe field", name, known)
    return Recipe(**given)


def write_recipe(recipe: Recipe) -> str:
    """A recipe as the text of a .toml file."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in recipe.to_json().items())


def read_overrides(arguments: Iterable[str]) -> dict[str, str]:
    """`--batch-size 32 --lr=0.1` as fields of a recipe; a field that may be on needs no value."""
    found: dict[str, str] = {}
    switches = {field.name for field in fields(Recipe) if field.type == "bool"}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise UnsmoothError(f"unexpected argument {word!r}; recipe fields are given as --field value")
        name, given, value = word[2:].partition("=")
        name = name.replace("-", "_")
        known = [field.name for field in fields(Recipe)]
        if name not in known:
            raise unknown("recipe field", name, known)
        if not given:
            if name in switches and (not rest or rest[0].startswith("--")):
                value = "true"
            elif not rest:
                raise UnsmoothError(f"--{name.replace('_', '-')} needs a value")
            else:
                value = rest.pop(0)
        found[name] = value
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The fields of two recipes that differ, in words."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"{name} was {old.get(name)!r} and is {new.get(name)!r}" for name in names]


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    kind, facts = str(field.type), field.metadata
    try:
        value = _READERS[kind](value)
    except (KeyError, TypeError, ValueError):
        raise UnsmoothError(f"recipe: {field.name} must be {_KINDS[kind]}, not {value!r}") from None
    if facts["words"] and value not in facts["words"]:
        raise unknown(f"value of {field.name}", str(value), facts["words"])
    if facts["low"] is not None and not value >= facts["low"]:
        raise UnsmoothError(f"recipe: {field.name} must be at least {facts['low']}, not {value}")
    if facts["above"] is not None and not value > facts["above"]:
        raise UnsmoothError(f"recipe: {field.name} must be above {facts['above']}, not {value}")
    if facts["high"] is not None and not value <= facts["high"]:
        raise UnsmoothError(f"recipe: {field.name} must be at most {facts['high']}, not {value}")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _number(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or number != number or abs(number) == float("inf"):
        raise ValueError
    return number


def _switch(value: Any) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[str(value).lower()]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _pair(value: Any) -> tuple[float, float]:
    low, high = value.split(",") if isinstance(value, str) else value
    return _number(low), _number(high)


_READERS = {"int": _whole, "float": _number, "bool": _switch, "str": _text, "tuple[float, float]": _pair}
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text",
          "tuple[float, float]": "two numbers with a comma"}  # fmt: skip

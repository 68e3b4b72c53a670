"""From a picture to what a host takes: its own size, crop, mean and deviation, by timm's transforms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import image_size


@dataclass(frozen=True)
class Preprocessing:
    """How a host wants its images: read from timm's settings of it, timm's defaults for hosts of other libraries."""

    size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    crop_pct: float
    crop_mode: str | None

    def evaluation(self) -> Any:
        """timm's transform for evaluation; a picture that has the host's size already is taken as it is."""
        from timm import data

        def pipeline(**crop: Any) -> Any:
            return data.create_transform(
                input_size=self.size, is_training=False, mean=self.mean, std=self.std,
                interpolation=self.interpolation, **crop,
            )  # fmt: skip

        usual = pipeline(crop_pct=self.crop_pct, crop_mode=self.crop_mode)
        whole = pipeline(crop_pct=1.0)

        def transform(picture: Image.Image) -> Tensor:
            tensor: Tensor = (whole if picture.size == self.size[:0:-1] else usual)(picture)
            return tensor

        return transform

    def training(self, **augmentation: Any) -> Any:
        """timm's transform for training; `augmentation` is what `timm.data.create_transform` takes."""
        from timm import data

        try:
            pipeline = data.create_transform(
                input_size=self.size, is_training=True, mean=self.mean, std=self.std,
                interpolation=self.interpolation, **augmentation,
            )  # fmt: skip
        except (AssertionError, KeyError, ValueError) as error:
            policy = augmentation.get("auto_augment")
            raise UnsmoothError(f"timm cannot augment by {policy!r}: {error or type(error).__name__}") from error
        for step in pipeline.transforms:
            policies = [op for policy in getattr(step, "policy", ()) for op in policy]
            for op in (*getattr(step, "ops", ()), *policies):
                if op.name.startswith("Posterize"):
                    op.aug_fn = posterize
        return pipeline


def posterize(picture: Image.Image, bits_to_keep: int, **_: Any) -> Image.Image:
    """timm's, which may ask for 0 bits: black, where newer versions of Pillow raise."""
    from timm.data import auto_augment

    if bits_to_keep < 1:
        return Image.new(picture.mode, picture.size)
    return auto_augment.posterize(picture, bits_to_keep)


def preprocessing(model: nn.Module, side: int = 0) -> Preprocessing:
    """How a host wants its images; `side` is for a host that takes any size."""
    from timm import data

    size = image_size(model)
    if side:
        size = (size[0], side, side)
    if size[0] not in (1, 3):
        raise UnsmoothError(f"this host takes {size[0]} channels, and pictures have 1 or 3; give it a tensor of floats")
    config = data.resolve_data_config(
        {"input_size": size}, pretrained_cfg=dict(getattr(model, "pretrained_cfg", None) or {})
    )
    mean, std = tuple(config["mean"]), tuple(config["std"])
    if len(mean) != size[0]:
        mean, std = (0.5,) * size[0], (0.5,) * size[0]
    return Preprocessing(size, mean, std, config["interpolation"], config["crop_pct"], config.get("crop_mode"))

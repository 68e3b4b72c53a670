"""timm transforms with the input size, crop, mean and standard deviation of a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import image_size


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of a host: from its timm configuration, or timm's defaults for hosts of other libraries."""

    size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    crop_pct: float
    crop_mode: str | None

    def eval_transform(self) -> Any:
        """timm's evaluation transform; images that have the input size already are not cropped."""
        from timm import data

        def pipeline(**crop: Any) -> Any:
            return data.create_transform(
                input_size=self.size, is_training=False, mean=self.mean, std=self.std,
                interpolation=self.interpolation, **crop,
            )  # fmt: skip

        cropped = pipeline(crop_pct=self.crop_pct, crop_mode=self.crop_mode)
        uncropped = pipeline(crop_pct=1.0)

        def transform(image: Image.Image) -> Tensor:
            tensor: Tensor = (uncropped if image.size == self.size[:0:-1] else cropped)(image)
            return tensor

        return transform

    def train_transform(self, **augmentation: Any) -> Any:
        """timm's training transform; `augmentation` holds arguments of `timm.data.create_transform`."""
        from timm import data

        try:
            pipeline = data.create_transform(
                input_size=self.size, is_training=True, mean=self.mean, std=self.std,
                interpolation=self.interpolation, **augmentation,
            )  # fmt: skip
        except (AssertionError, KeyError, ValueError) as error:
            policy = augmentation.get("auto_augment")
            raise UnsmoothError(
                f"timm cannot build the augmentation {policy!r}: {error or type(error).__name__}"
            ) from error
        for step in pipeline.transforms:
            policies = [op for policy in getattr(step, "policy", ()) for op in policy]
            for op in (*getattr(step, "ops", ()), *policies):
                if op.name.startswith("Posterize"):
                    op.aug_fn = posterize
        return pipeline


def posterize(image: Image.Image, bits_to_keep: int, **_: Any) -> Image.Image:
    """timm's posterize, which may use 0 bits: black, where newer versions of Pillow raise."""
    from timm.data import auto_augment

    if bits_to_keep < 1:
        return Image.new(image.mode, image.size)
    return auto_augment.posterize(image, bits_to_keep)


def preprocessing(model: nn.Module, side: int = 0) -> Preprocessing:
    """Preprocessing of a host; `side` replaces the input size of hosts that accept any."""
    from timm import data

    size = image_size(model)
    if side:
        size = (size[0], side, side)
    if size[0] not in (1, 3):
        raise UnsmoothError(f"the host takes {size[0]} channels, but image files have 1 or 3. Use a float tensor.")
    config = data.resolve_data_config(
        {"input_size": size}, pretrained_cfg=dict(getattr(model, "pretrained_cfg", None) or {})
    )
    mean, std = tuple(config["mean"]), tuple(config["std"])
    if len(mean) != size[0]:
        mean, std = (0.5,) * size[0], (0.5,) * size[0]
    return Preprocessing(size, mean, std, config["interpolation"], config["crop_pct"], config.get("crop_mode"))

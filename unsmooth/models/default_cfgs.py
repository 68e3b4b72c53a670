"""What timm asks of a registered model: its picture size, crop, mean and deviation, and how it is built."""

from __future__ import annotations

from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models._builder import build_model_with_cfg
from timm.models._registry import generate_default_cfgs
from timm.models.vision_transformer import checkpoint_filter_fn

SETTINGS: dict[str, Any] = {
    "url": "", "num_classes": 1000, "input_size": (3, 224, 224), "pool_size": None, "crop_pct": 0.9,
    "interpolation": "bicubic", "mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD, "classifier": "head",
    "first_conv": "patch_embed.proj", "fixed_input_size": True,
}  # fmt: skip


def settings(*names: str, **different: Any) -> Any:
    """The `default_cfgs` of models without weights to download, which differ from DeiT's in what is named."""
    return generate_default_cfgs({f"{name}.untrained": {**SETTINGS, **different} for name in names})


def build_vit(kind: Any, name: str, pretrained: bool, **sizes: Any) -> Any:
    """A ViT of timm, or a subclass of it, as timm builds its own."""
    features = {"out_indices": 3, "feature_cls": "getter"}  # made anew each time: timm takes it apart
    return build_model_with_cfg(
        kind, name, pretrained, pretrained_filter_fn=checkpoint_filter_fn, feature_cfg=features, **sizes
    )

"""The `default_cfgs` that timm needs for a registered model (image size, crop, mean, std), and a builder of ViTs."""

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


def settings(*names: str, tag: str = "untrained", **overrides: Any) -> Any:
    """The `default_cfgs` of models, by default without pretrained weights: those of DeiT, with overrides."""
    return generate_default_cfgs({f"{name}.{tag}": {**SETTINGS, **overrides} for name in names})


def build_vit(kind: Any, name: str, pretrained: bool, **sizes: Any) -> Any:
    """Build timm's VisionTransformer or a subclass of it, as timm does."""
    features = {"out_indices": 3, "feature_cls": "getter"}  # a new dict for each call: timm changes it
    return build_model_with_cfg(
        kind, name, pretrained, pretrained_filter_fn=checkpoint_filter_fn, feature_cfg=features, **sizes
    )

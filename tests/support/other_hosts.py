"""Small hosts that write attention in other ways: einsum, maps on the right, shared keys, several per block."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import timm
import torch.nn.functional as F
from torch import Tensor, nn

_VIT = {
    "image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 48, "depth": 2, "heads": 3, "mlp_dim": 96,
    "dim_head": 16,
}  # fmt: skip


def _vit_pytorch(module: str, cls: str, **options: Any) -> nn.Module:
    return getattr(importlib.import_module(f"vit_pytorch.{module}"), cls)(**options)


def _sized(model: nn.Module, side: int) -> nn.Module:
    model.image_size = side  # where `example_input` finds it
    return model


def _levit_conv() -> nn.Module:
    from timm.models.levit import Levit

    return _sized(
        Levit(img_size=128, embed_dim=(16, 24, 32), key_dim=4, depth=(1, 1, 1), num_heads=(2, 3, 4), num_classes=5,
              use_conv=True), 128,
    )  # fmt: skip


def _shvit() -> nn.Module:
    from timm.models.shvit import SHViT

    return _sized(SHViT(embed_dim=(16, 24, 32), partial_dim=(4, 8, 8), qk_dim=(4, 4, 4), depth=(1, 1, 1),
                        num_classes=5), 128)  # fmt: skip


def _efficientvit() -> nn.Module:
    from timm.models.efficientvit_msra import EfficientVitMsra

    return EfficientVitMsra(img_size=128, embed_dim=(16, 24, 32), key_dim=(4, 4, 4), depth=(1, 1, 1),
                            num_heads=(2, 2, 2), window_size=(2, 2, 2), num_classes=5)  # fmt: skip


def _tnt() -> nn.Module:
    from timm.models.tnt import TNT

    return TNT(img_size=32, patch_size=8, embed_dim=48, inner_dim=12, depth=2, num_heads_inner=3, num_heads_outer=3,
               num_classes=5)  # fmt: skip


def _hiera() -> nn.Module:
    from timm.models.hiera import Hiera

    return _sized(Hiera(img_size=(64, 64), embed_dim=16, num_heads=1, stages=(1, 1, 1), mask_unit_size=(8, 8),
                        mask_unit_attn=(True, True, False), q_pool=2, num_classes=5), 64)  # fmt: skip


def _hf(name: str, **options: Any) -> nn.Module:
    import transformers

    return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options))


def _sam() -> nn.Module:
    return _hf("SamVision", hidden_size=48, num_hidden_layers=2, num_attention_heads=3, image_size=32, patch_size=4,
               window_size=4, global_attn_indexes=[1], mlp_dim=96, output_channels=16,
               attn_implementation="eager")  # fmt: skip


class _MultiQuery(nn.Module):
    """Attention whose heads share one head of keys and values, as in MobileNetV4."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.q, self.kv, self.proj = nn.Linear(dim, dim), nn.Linear(dim, 2 * self.head_dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        q = self.q(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = self.kv(x).unsqueeze(1).chunk(2, dim=-1)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def _multi_query() -> nn.Module:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_classes=5)
    for block in model.blocks:
        block.attn = _MultiQuery(48, 3)
    return model


OTHER_HOSTS: dict[str, Callable[[], nn.Module]] = {
    "vp_vit": lambda: _vit_pytorch("vit", "ViT", **_VIT),
    "vp_cait": lambda: _vit_pytorch("cait", "CaiT", **_VIT, cls_depth=1),
    "vp_rvt": lambda: _sized(_vit_pytorch("rvt", "RvT", **_VIT), 32),
    "vp_parallel": lambda: _vit_pytorch("parallel_vit", "ViT", **_VIT),
    "vp_maxvit": lambda: _sized(
        _vit_pytorch("max_vit", "MaxViT", num_classes=5, dim=16, depth=(1, 1), dim_head=8, dim_conv_stem=8,
                     window_size=4), 32,
    ),
    "levit_conv": _levit_conv,
    "shvit": _shvit,
    "efficientvit_msra": _efficientvit,
    "tnt": _tnt,
    "hiera": _hiera,
    "hf_cvt": lambda: _hf("Cvt", embed_dim=[8, 16, 24], num_heads=[1, 2, 3], depth=[1, 2, 3], image_size=32),
    "hf_sam": _sam,
    "multi_query": _multi_query,
}  # fmt: skip

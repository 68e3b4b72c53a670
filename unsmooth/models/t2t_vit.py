"""T2T-ViT (Yuan et al., Tokens-to-Token ViT, ICCV 2021): a deep, narrow ViT whose tokens come from soft splits.

t2t_vit_14, _19, _24       performer layers between the splits: 81.5, 81.9 and 82.3 top-1, the baselines of Augmented
                           Shortcuts
t2t_vit_t_14, _19, _24     softmax layers between the splits: 81.7, 82.4 and 82.6

Position embeddings are fixed sinusoids over the sequence, class token first. The blocks of the backbone are pre-norm
blocks. The two layers between the splits are not blocks, so remedies and vitals ignore them. Parameter names are those
of the authors' code.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.layers import trunc_normal_
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn  # noqa: F401  # looked up here when loading
from torch import Tensor, nn

from unsmooth.models.default_cfgs import build_vit, settings
from unsmooth.models.tokens_to_token import TokensToToken

SIZES = {  # width, blocks, heads
    "14": {"embed_dim": 384, "depth": 14, "num_heads": 6},
    "19": {"embed_dim": 448, "depth": 19, "num_heads": 7},
    "24": {"embed_dim": 512, "depth": 24, "num_heads": 8},
}
default_cfgs = settings(*(f"t2t_vit_{t}{size}" for t in ("", "t_") for size in SIZES), first_conv=None)


def sinusoids(positions: int, channels: int) -> Tensor:
    """sin(p/10000^{2i/d}) in channel 2i and cos of the same in channel 2i+1, (1, positions, channels)."""
    pairs = torch.arange(channels) // 2
    angles = torch.arange(positions).double().unsqueeze(1) / 10000.0 ** (2 * pairs.double() / channels)
    return torch.where(torch.arange(channels) % 2 == 0, angles.sin(), angles.cos()).float().unsqueeze(0)


class T2TViT(VisionTransformer):  # type: ignore[misc]
    """timm's ViT with tokens-to-token as its patch embedding."""

    def __init__(
        self, *, tokens_type: str = "performer", token_dim: int = 64, token_drop_rate: float = 0.1, **options: Any
    ) -> None:
        embed = partial(TokensToToken, tokens_type=tokens_type, token_dim=token_dim, drop=token_drop_rate)
        super().__init__(embed_layer=embed, **options)
        self.tokens_to_token = self._modules.pop("patch_embed")
        assert self.pos_embed is not None
        self.pos_embed.requires_grad_(False)

    @property
    def patch_embed(self) -> nn.Module | None:
        """The module that timm calls patch_embed; after construction it has the authors' name."""
        return self._modules.get("tokens_to_token", self._modules.get("patch_embed"))

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        super().init_weights(mode, needs_reset=needs_reset)
        trunc_normal_(self.cls_token, std=0.02)
        with torch.no_grad():
            self.pos_embed.copy_(sinusoids(*self.pos_embed.shape[1:]))

    def set_input_size(self, *args: Any, **kwargs: Any) -> None:
        super().set_input_size(*args, **kwargs)
        self.pos_embed.requires_grad_(False)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return {
            "stem": r"^cls_token|pos_embed|tokens_to_token",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }


def _create(name: str, pretrained: bool, **kwargs: Any) -> T2TViT:
    tokens = "transformer" if "_t_" in name else "performer"
    sizes = {**SIZES[name[-2:]], "mlp_ratio": 3.0, "qkv_bias": False, "norm_layer": partial(nn.LayerNorm, eps=1e-5)}
    return build_vit(T2TViT, name, pretrained, **{**sizes, "tokens_type": tokens, **kwargs})


@register_model  # type: ignore[untyped-decorator]
def t2t_vit_14(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-14."""
    return _create("t2t_vit_14", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def t2t_vit_19(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-19."""
    return _create("t2t_vit_19", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def t2t_vit_24(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-24."""
    return _create("t2t_vit_24", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def t2t_vit_t_14(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT_t-14."""
    return _create("t2t_vit_t_14", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def t2t_vit_t_19(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT_t-19."""
    return _create("t2t_vit_t_19", pretrained, **kwargs)


@register_model  # type: ignore[untyped-decorator]
def t2t_vit_t_24(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT_t-24."""
    return _create("t2t_vit_t_24", pretrained, **kwargs)

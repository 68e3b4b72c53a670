"""PVT (Wang et al., Pyramid Vision Transformer, ICCV 2021): four stages with fewer and wider tokens each.

    SRA(x) = softmax(QKᵀ/√d) V,   Q from x, K and V from LN(conv_R×R(x)) with stride R: R² times fewer keys

Each stage has a patch embedding and learned position embeddings; the last one has a class token and R = 1. Position
embeddings are resampled (bilinear) for other image sizes. Parameter names are those of the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from timm.layers import DropPath, Mlp, calculate_drop_path_rates, resample_abs_pos_embed, to_2tuple, trunc_normal_
from timm.layers.patch_embed import PatchEmbedWithSize
from timm.models import register_model
from timm.models._builder import build_model_with_cfg
from timm.models._features import feature_take_indices
from timm.models._manipulate import checkpoint
from timm.models.pvt_v2 import Attention  # the attention of v1, with its names
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.models.default_cfgs import settings

default_cfgs = settings("pvt_tiny", "pvt_small", "pvt_medium", "pvt_large", first_conv="patch_embed1.proj")
resample = partial(resample_abs_pos_embed, interpolation="bilinear", antialias=False)


class Block(nn.Module):
    """Spatial-reduction attention and MLP, each with a norm before it and a skip."""

    def __init__(
        self, dim: int, num_heads: int, mlp_ratio: float, sr_ratio: int, proj_drop: float, attn_drop: float,
        drop_path: float, **factory: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6, **factory)
        self.attn = Attention(dim, num_heads, sr_ratio, attn_drop=attn_drop, proj_drop=proj_drop, **factory)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6, **factory)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop, **factory)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x), grid))
        out: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
        return out


class PyramidVisionTransformer(nn.Module):
    """PVT v1. Stage i = 1, 2, … consists of patch_embed{i}, pos_embed{i}, pos_drop{i} and block{i}."""

    def __init__(
        self, img_size: int | tuple[int, int] = 224, patch_size: int = 4, in_chans: int = 3, num_classes: int = 1000,
        global_pool: str = "token", embed_dims: Sequence[int] = (64, 128, 320, 512),
        depths: Sequence[int] = (2, 2, 2, 2), num_heads: Sequence[int] = (1, 2, 5, 8),
        mlp_ratios: Sequence[float] = (8, 8, 4, 4), sr_ratios: Sequence[int] = (8, 4, 2, 1), drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0, proj_drop_rate: float = 0.0, attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        stages = len(depths)
        if any(len(sizes) != stages for sizes in (embed_dims, num_heads, mlp_ratios, sr_ratios)):
            raise UnsmoothError(
                "PVT needs one value of embed_dims, num_heads, mlp_ratios and sr_ratios per stage, as many as depths"
            )
        if sr_ratios[-1] != 1:
            raise UnsmoothError(
                "the last stage of PVT has a class token, so its keys cannot be reduced. End sr_ratios with 1."
            )
        if global_pool not in ("token", "avg"):
            raise UnsmoothError(f"unknown global_pool {global_pool!r} of PVT. Use token or avg.")
        self.num_classes, self.in_chans, self.global_pool = num_classes, in_chans, global_pool
        self.depths, self.num_features = tuple(depths), embed_dims[-1]
        self.head_hidden_size = self.num_features
        self.num_prefix_tokens, self.grad_checkpointing = 1, False
        self.image_size = to_2tuple(img_size)
        self.strides = [patch_size * 2**i for i in range(stages)]
        rates = calculate_drop_path_rates(drop_path_rate, depths, stagewise=True)
        before = in_chans
        for i, width in enumerate(embed_dims):
            patch, last = patch_size if i == 0 else 2, i == stages - 1
            embed = PatchEmbedWithSize(None, patch, before, width, norm_layer=nn.LayerNorm, **factory)
            positions = torch.zeros(1, math.prod(self.grid_size(i)) + last, width, **factory)
            blocks = nn.ModuleList(
                Block(width, num_heads[i], mlp_ratios[i], sr_ratios[i], proj_drop_rate, attn_drop_rate, rate, **factory)
                for rate in rates[i]
            )
            setattr(self, f"patch_embed{i + 1}", embed)
            setattr(self, f"pos_embed{i + 1}", nn.Parameter(positions))
            setattr(self, f"pos_drop{i + 1}", nn.Dropout(pos_drop_rate))
            setattr(self, f"block{i + 1}", blocks)
            before = width
        self.feature_info = [
            {"num_chs": width, "reduction": stride, "module": f"block{i + 1}"}
            for i, (width, stride) in enumerate(zip(embed_dims, self.strides, strict=True))
        ]
        self.norm = nn.LayerNorm(self.num_features, eps=1e-6, **factory)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, self.num_features, **factory))
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(self.num_features, num_classes, **factory) if num_classes > 0 else nn.Identity()
        self.init_weights()

    def grid_size(self, stage: int) -> tuple[int, int]:
        """Rows and columns of the tokens of a stage, for images of the configured size."""
        height, width = self.image_size
        return height // self.strides[stage], width // self.strides[stage]

    def init_weights(self) -> None:
        for name, parameter in self.named_parameters():
            if name.startswith(("pos_embed", "cls_token")):
                trunc_normal_(parameter, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def no_weight_decay(self) -> set[str]:
        return {"cls_token"}  # position embeddings decay, as in the authors' code

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        embeddings = (r"^(?:patch_embed|pos_embed)(\d+)", (0,))
        blocks = (r"^block(\d+)", None) if coarse else (r"^block(\d+)\.(\d+)", None)
        return {"stem": r"^(?:patch_embed|pos_embed)1", "blocks": [embeddings, blocks, (r"^cls_token|^norm", (99999,))]}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes, self.global_pool = num_classes, global_pool or self.global_pool
        like: dict[str, Any] = {"device": self.cls_token.device, "dtype": self.cls_token.dtype}
        self.head = nn.Linear(self.num_features, num_classes, **like) if num_classes > 0 else nn.Identity()

    def stage(self, i: int, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The tokens of a stage and their grid, for an image or map; the last stage has a class token first."""
        x, (rows, columns) = getattr(self, f"patch_embed{i + 1}")(x)
        last = i == len(self.depths) - 1
        if last:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        positions = getattr(self, f"pos_embed{i + 1}")
        x = x + resample(positions, [rows, columns], list(self.grid_size(i)), num_prefix_tokens=int(last))
        x = getattr(self, f"pos_drop{i + 1}")(x)
        for block in getattr(self, f"block{i + 1}"):
            x = checkpoint(block, x, (rows, columns)) if self.grad_checkpointing else block(x, (rows, columns))
        return x, (rows, columns)

    def forward_intermediates(
        self, x: Tensor, indices: int | list[int] | None = None, norm: bool = False, stop_early: bool = False,
        output_fmt: str = "NCHW", intermediates_only: bool = False,
    ) -> Any:  # fmt: skip
        """The maps of the stages, and the last tokens unless `intermediates_only`; `norm` is for the last stage."""
        if output_fmt != "NCHW":
            raise UnsmoothError(f"the stages of PVT differ in size, so output_fmt must be NCHW (got {output_fmt})")
        selected, furthest = feature_take_indices(len(self.depths), indices)
        maps = []
        tokens = x
        for i in range(furthest + 1 if stop_early and intermediates_only else len(self.depths)):
            tokens, grid = self.stage(i, x)
            last = i == len(self.depths) - 1
            patches = (self.norm(tokens) if norm else tokens)[:, 1:] if last else tokens
            x = patches.transpose(1, 2).unflatten(-1, grid).contiguous()
            if i in selected:
                maps.append(x)
        return maps if intermediates_only else (self.norm(tokens), maps)

    def forward_features(self, x: Tensor) -> Tensor:
        for i in range(len(self.depths) - 1):
            tokens, grid = self.stage(i, x)
            x = tokens.transpose(1, 2).unflatten(-1, grid)
        out: Tensor = self.norm(self.stage(len(self.depths) - 1, x)[0])
        return out

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(x[:, 0] if self.global_pool == "token" else x[:, 1:].mean(dim=1))
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: PyramidVisionTransformer) -> dict[str, Tensor]:
    """Adapt a checkpoint for another image size: position embeddings are resampled."""
    own = model.state_dict()
    for i in range(len(model.depths)):
        name, last = f"pos_embed{i + 1}", i == len(model.depths) - 1
        if name in state_dict and state_dict[name].shape != own[name].shape:
            grid = list(model.grid_size(i))
            state_dict[name] = resample(state_dict[name], grid, num_prefix_tokens=int(last))
    return state_dict


def _create(name: str, pretrained: bool, **sizes: Any) -> PyramidVisionTransformer:
    return build_model_with_cfg(
        PyramidVisionTransformer, name, pretrained, pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": (0, 1, 2, 3), "feature_cls": "getter"}, **sizes,
    )  # fmt: skip


@register_model  # type: ignore[untyped-decorator]
def pvt_tiny(pretrained: bool = False, **kwargs: Any) -> PyramidVisionTransformer:
    """PVT-Tiny."""
    return _create("pvt_tiny", pretrained, **{"depths": (2, 2, 2, 2), **kwargs})


@register_model  # type: ignore[untyped-decorator]
def pvt_small(pretrained: bool = False, **kwargs: Any) -> PyramidVisionTransformer:
    """PVT-Small."""
    return _create("pvt_small", pretrained, **{"depths": (3, 4, 6, 3), **kwargs})


@register_model  # type: ignore[untyped-decorator]
def pvt_medium(pretrained: bool = False, **kwargs: Any) -> PyramidVisionTransformer:
    """PVT-Medium."""
    return _create("pvt_medium", pretrained, **{"depths": (3, 4, 18, 3), **kwargs})


@register_model  # type: ignore[untyped-decorator]
def pvt_large(pretrained: bool = False, **kwargs: Any) -> PyramidVisionTransformer:
    """PVT-Large."""
    return _create("pvt_large", pretrained, **{"depths": (3, 8, 27, 3), **kwargs})

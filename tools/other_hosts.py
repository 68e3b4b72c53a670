"""Small hosts of other libraries that `make hosts` tries: every class of vit-pytorch, and unusual ones of timm and HF.

Sizes are as small as each class allows. An input that `example_input` cannot guess is given with the host.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class OtherHost:
    """How to build a host, and one input of it; None: an image of the default size."""

    build: Callable[[], nn.Module]
    example: dict[str, Any] | None = None


def _image(side: int = 32) -> dict[str, Any]:
    return {"image": torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))}


def _vit_pytorch(path: str, given: dict[str, Any] | None = None, **options: Any) -> OtherHost:
    module, cls = path.split(".")
    return OtherHost(lambda: getattr(importlib.import_module(f"vit_pytorch.{module}"), cls)(**options), given)


def _timm(name: str, **options: Any) -> OtherHost:
    import timm

    return OtherHost(lambda: timm.create_model(name, num_classes=5, **options))


def _hf(name: str, **options: Any) -> OtherHost:
    import transformers

    return OtherHost(lambda: getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options)))


_VIT = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 5,
    "dim": 48,
    "depth": 2,
    "heads": 3,
    "mlp_dim": 96,
    "dim_head": 16,
}
_VIDEO = {**_VIT, "image_patch_size": 8, "frames": 4, "frame_patch_size": 2}
del _VIDEO["patch_size"]
_STAGED = {key: value for key, value in _VIDEO.items() if key != "depth"} | {"spatial_depth": 1, "temporal_depth": 1}
_SERIES = {key: value for key, value in _VIT.items() if key != "image_size"} | {"seq_len": 64}
_GRID = {key: value for key, value in _VIT.items() if key != "image_size"} | {"ndim": 2, "input_shape": (32, 32)}
_CLIP = {"image": torch.zeros(1, 3, 4, 32, 32)}
_SAM = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 64, "patch_size": 8,
        "window_size": 4, "global_attn_indexes": [1], "mlp_dim": 96, "output_channels": 16}  # fmt: skip
_CCT = {"img_size": 32, "embedding_dim": 48, "num_layers": 2, "num_heads": 3, "mlp_ratio": 2.0, "num_classes": 5,
        "n_conv_layers": 1, "kernel_size": 3, "stride": 2, "padding": 1}  # fmt: skip
_FRAMES = {
    "num_frames": 4,
    "frame_kernel_size": 3,
    "frame_stride": 1,
    "frame_pooling_kernel_size": 1,
    "frame_pooling_stride": 1,
}
# Classes with the options of `vit.ViT`
_ALIKE = """
    deepvit.DeepViT jet_vit.JetViT jumbo_vit.JumboViT learnable_memory_vit.ViT local_vit.LocalViT mp3.ViT
    normalized_vit.nViT parallel_vit.ViT rvt.RvT simple_flash_attn_vit.SimpleViT simple_uvit.SimpleUViT
    simple_vit.SimpleViT simple_vit_attn_residual.SimpleViTAttnResidual simple_vit_orthog_residual_update.SimpleViT
    simple_vit_with_patch_dropout.SimpleViT simple_vit_with_qk_norm.SimpleViT
    simple_vit_with_register_tokens.SimpleViT simple_vit_with_relative_proj_pos_bias.SimpleViT
    simple_vit_with_sparse_gating.SimpleViTWithSparseGating simple_vit_with_specialized_cls.SimpleViT
    simple_vit_with_value_residual.SimpleViT attn_residual_with_dca_simple_vit.SimpleViT vat.ViT vit.ViT vit_5.ViT
    vit_detpool.ViTDetPool vit_for_small_dataset.ViT vit_with_decorr.ViT vit_with_keel_post_ln.ViT
    vit_with_patch_dropout.ViT vit_with_patch_merger.ViT
"""
VIT_PYTORCH: dict[str, OtherHost] = {
    **{path: _vit_pytorch(path, _image(), **_VIT) for path in _ALIKE.split()},
    "ats_vit.ViT": _vit_pytorch("ats_vit.ViT", _image(), **_VIT, max_tokens_per_depth=(12, 8)),
    "cait.CaiT": _vit_pytorch("cait.CaiT", _image(), **_VIT, cls_depth=1),
    "cct.CCT": OtherHost(lambda: importlib.import_module("vit_pytorch.cct").CCT(**_CCT), _image()),
    "cct_3d.CCT": OtherHost(lambda: importlib.import_module("vit_pytorch.cct_3d").CCT(**_CCT, **_FRAMES), _CLIP),
    "cross_vit.CrossViT": _vit_pytorch(
        "cross_vit.CrossViT", _image(), image_size=32, num_classes=5, sm_dim=24, lg_dim=48, sm_patch_size=4,
        sm_enc_heads=2, sm_enc_mlp_dim=48, sm_enc_dim_head=12, lg_patch_size=8, lg_enc_depth=2, lg_enc_heads=3,
        lg_enc_mlp_dim=96, lg_enc_dim_head=16, cross_attn_depth=1, cross_attn_heads=2, cross_attn_dim_head=12, depth=1),
    "crossformer.CrossFormer": _vit_pytorch(
        "crossformer.CrossFormer", _image(64), dim=(32, 32, 64, 64), depth=(1, 1, 1, 1),
        global_window_size=(4, 2, 2, 1), local_window_size=2, num_classes=5),
    "cvt.CvT": _vit_pytorch(
        "cvt.CvT", _image(64), num_classes=5, s1_emb_dim=16, s1_heads=1, s2_emb_dim=32, s2_heads=2, s2_depth=1,
        s3_emb_dim=48, s3_heads=3, s3_depth=1),
    "levit.LeViT": _vit_pytorch(
        "levit.LeViT", _image(64), image_size=64, num_classes=5, dim=(32, 48), depth=(1, 1), heads=(2, 3), mlp_mult=2,
        stages=2, dim_key=8, dim_value=16),
    "look_vit.LookViT": _vit_pytorch(
        "look_vit.LookViT", _image(), dim=48, image_size=32, num_classes=5, depth=2, patch_size=8, heads=3,
        mlp_factor=2, dim_head=16, highres_patch_size=4, cross_attn_heads=2, cross_attn_dim_head=16),
    "looped_vit.LoopedViT": _vit_pytorch(
        "looped_vit.LoopedViT", _image(), image_size=32, patch_size=8, num_classes=5, dim=48, pre_loop_depth=1,
        num_looped_blocks=1, post_loop_depth=1, loop_depth=2, heads=3, dim_head=16, mlp_dim=96),
    **{path: _vit_pytorch(path, _image(64), num_classes=5, dim=32, depth=(1, 1), dim_head=16, dim_conv_stem=16,
                          window_size=4) for path in ("max_vit.MaxViT", "max_vit_with_registers.MaxViT")},
    "mobile_vit.MobileViT": _vit_pytorch(
        "mobile_vit.MobileViT", _image(64), image_size=(64, 64), dims=[24, 32, 40],
        channels=[8, 8, 16, 16, 24, 24, 32, 32, 40, 40, 48], num_classes=5, depths=(1, 1, 1)),
    "na_vit.NaViT": _vit_pytorch("na_vit.NaViT", {"image": [[torch.zeros(3, 32, 32)]]}, **_VIT),
    "na_vit_nested_tensor.NaViT": _vit_pytorch(
        "na_vit_nested_tensor.NaViT", {"image": [torch.zeros(3, 32, 32)]}, **_VIT),
    "na_vit_nested_tensor_3d.NaViT": _vit_pytorch(
        "na_vit_nested_tensor_3d.NaViT", {"image": [torch.zeros(3, 4, 32, 32)]}, **_VIT, max_frames=4,
        frame_patch_size=2),
    "nest.NesT": _vit_pytorch(
        "nest.NesT", _image(), image_size=32, patch_size=4, num_classes=5, dim=24, heads=3, num_hierarchies=2,
        block_repeats=(1, 1), dim_head=8),
    "pit.PiT": _vit_pytorch("pit.PiT", _image(), **{**_VIT, "depth": (1, 1)}),
    "regionvit.RegionViT": _vit_pytorch(
        "regionvit.RegionViT", _image(64), dim=(16, 32, 48, 64), depth=(1, 1, 1, 1), window_size=2, num_classes=5),
    "scalable_vit.ScalableViT": _vit_pytorch(
        "scalable_vit.ScalableViT", _image(64), num_classes=5, dim=16, heads=(1, 2), depth=(1, 1), ssa_dim_key=(8, 8),
        reduction_factor=(2, 1), window_size=(4, None), iwsa_dim_key=8, iwsa_dim_value=8, ssa_dim_value=8),
    "sep_vit.SepViT": _vit_pytorch(
        "sep_vit.SepViT", _image(56), num_classes=5, dim=16, dim_head=8, heads=(1, 2), depth=(1, 1)),
    **{path: _vit_pytorch(path, _CLIP, **_VIDEO) for path in (
        "simple_flash_attn_vit_3d.SimpleViT", "simple_vit_3d.SimpleViT", "vit_3d.ViT")},
    **{path: _vit_pytorch(path, {"image": torch.zeros(1, 3, 64)}, **_SERIES) for path in (
        "simple_vit_1d.SimpleViT", "vit_1d.ViT")},
    "simple_vit_with_fft.SimpleViT": _vit_pytorch(
        "simple_vit_with_fft.SimpleViT", _image(), **_VIT, freq_patch_size=8),
    "simple_vit_with_hyper_connections.SimpleViT": _vit_pytorch(
        "simple_vit_with_hyper_connections.SimpleViT", _image(), **_VIT, num_residual_streams=2),
    "t2t.T2TViT": _vit_pytorch(
        "t2t.T2TViT", _image(), image_size=32, num_classes=5, dim=48, depth=2, heads=3, mlp_dim=96, dim_head=16,
        t2t_layers=((7, 4), (3, 2))),
    "twins_svt.TwinsSVT": _vit_pytorch(
        "twins_svt.TwinsSVT", _image(64), num_classes=5, s1_emb_dim=16, s1_local_patch_size=2, s1_global_k=2,
        s2_emb_dim=24, s2_local_patch_size=2, s2_global_k=2, s3_emb_dim=32, s3_local_patch_size=2, s3_global_k=2,
        s3_depth=1, s4_emb_dim=48, s4_local_patch_size=2, s4_global_k=2, s4_depth=1),
    "vat_siglip.SigLIP": _vit_pytorch(
        "vat_siglip.SigLIP", _image(), image_size=32, patch_size=8, dim=48, depth=2, heads=3, mlp_dim=96),
    **{path: _vit_pytorch(path, _image(), **_GRID) for path in (
        "vit_nd.ViTND", "vit_nd_pope.ViTND", "vit_nd_rotary.ViTND")},
    **{path: _vit_pytorch(path, _CLIP, **_STAGED) for path in ("vivit.ViViT", "vivit_with_moss.ViViT")},
    "wwt.WWT": _vit_pytorch("wwt.WWT", _image(), **_VIT, num_slots=4),
    "xcit.XCiT": _vit_pytorch("xcit.XCiT", _image(), **_VIT, cls_depth=1),
}  # fmt: skip
OTHERS: dict[str, OtherHost] = {
    "timm levit_128s": _timm("levit_128s"),
    "timm levit_conv_128s": _timm("levit_conv_128s"),
    "timm shvit_s1": _timm("shvit_s1"),
    "timm efficientvit_m0": _timm("efficientvit_m0"),
    "timm tnt_s_patch16_224": _timm("tnt_s_patch16_224", depth=2),
    "timm maxvit_rmlp_pico_rw_256": _timm("maxvit_rmlp_pico_rw_256"),
    "timm mobilevit_xxs": _timm("mobilevit_xxs"),
    "timm hiera_tiny_224": _timm("hiera_tiny_224"),
    "timm samvit_base_patch16_224": _timm("samvit_base_patch16_224", depth=2, embed_dim=96, num_heads=3),
    "timm vit_small_patch16_18x2_224": _timm("vit_small_patch16_18x2_224", depth=2),
    "timm coat_tiny": _timm("coat_tiny"),
    "timm efficientvit_b0": _timm("efficientvit_b0"),
    "timm mobilevitv2_050": _timm("mobilevitv2_050"),
    "HF CvT": _hf("Cvt", embed_dim=[16, 32, 48], num_heads=[1, 2, 3], depth=[1, 2, 3]),
    "HF SAM": _hf("SamVision", **_SAM),
    "HF SAM, eager": _hf("SamVision", **_SAM, attn_implementation="eager"),
    "HF LeViT": _hf("Levit", hidden_sizes=[32, 48, 64], num_attention_heads=[2, 3, 4], depths=[1, 1, 1],
                    key_dim=[8, 8, 8], image_size=64),
    "HF Hiera": _hf("Hiera", embed_dim=16, num_heads=[1, 2, 4, 8], depths=[1, 1, 1, 1], image_size=[64, 64]),
    "HF MobileViT": _hf("MobileViT", hidden_sizes=[24, 32, 40], image_size=64),
    "HF ViT, flex_attention": _hf("ViT", num_hidden_layers=2, hidden_size=48, num_attention_heads=3, image_size=32,
                                  patch_size=8, attn_implementation="flex_attention"),
}  # fmt: skip

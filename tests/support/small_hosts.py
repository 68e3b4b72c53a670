"""Small instances of every supported host family, with weights that look trained.

A new host has a head of zeros, layer scales of 1e-5 and almost uniform attention, which hide mistakes. All weights are
replaced by random ones, so that attention is sharp and every branch has an effect.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.support.other_hosts import OTHER_HOSTS
from unsmooth.hosts.anatomy import Anatomy
from unsmooth.hosts.examine import examine
from unsmooth.hosts.inputs import Example, example_input, first_tensor, run

_TIMM = "img_size=32, patch_size=8, embed_dim=48, depth=2, num_classes=5"
_HF = "num_hidden_layers=2, hidden_size=48, num_attention_heads=3, image_size=32, patch_size=8"

HOSTS: dict[str, str] = {
    "deit": f"deit_tiny_patch16_224({_TIMM})",
    "deit_distilled": f"deit_tiny_distilled_patch16_224({_TIMM})",
    "deit3": f"deit3_small_patch16_224({_TIMM}, num_heads=3)",
    "dinov2": f"vit_small_patch14_dinov2({_TIMM}, num_heads=3)",
    "dinov2_registers": f"vit_small_patch14_reg4_dinov2({_TIMM}, num_heads=3)",
    "cait": f"cait_xxs24_224({_TIMM}, num_heads=3)",
    "swin": "swin_tiny_patch4_window7_224(depths=[2, 1], num_heads=[2, 4], img_size=56, embed_dim=16, num_classes=5)",
    "pvt_v2": "pvt_v2_b0(depths=[1, 1, 1, 1], embed_dims=[8, 16, 40, 64], num_classes=5)",
    "beit": f"beit_base_patch16_224({_TIMM}, num_heads=3)",
    "eva02": f"eva02_tiny_patch14_224({_TIMM}, num_heads=3)",
    "hf_vit": f"hf:vit({_HF}, intermediate_size=96)",
    "hf_deit": f"hf:deit({_HF}, intermediate_size=96)",
    "hf_dinov2": f"hf:dinov2({_HF})",
    "hf_clip": f"hf:clip_vision_model({_HF}, intermediate_size=96)",
    "hf_swin": "hf:swin(image_size=56, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=7)",
    "hf_vilt": f"hf:vilt({_HF}, intermediate_size=96)",
}
# The builders of torchvision fix width and depth, so the classes are used.
TORCHVISION = ("torchvision_vit", "torchvision_swin")
CONVMIXER = "convmixer"
ALL = (*HOSTS, *TORCHVISION)


def _torchvision(name: str) -> nn.Module:
    from torchvision.models import SwinTransformer, VisionTransformer

    if name == "torchvision_vit":
        return VisionTransformer(32, 8, 2, 3, 48, 96, num_classes=5)
    return SwinTransformer([4, 4], 16, [2, 1], [2, 4], [7, 7], stochastic_depth_prob=0.0, num_classes=5)


def look_trained(model: nn.Module, seed: int = 0) -> nn.Module:
    """Replace every parameter by a random one: sharp attention, gains around one, no zero heads."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        draw = torch.randn(parameter.shape, generator=generator)
        gain = parameter.ndim < 2 and ("norm" in name or "ls" in name or "gamma" in name or "ln" in name)
        if gain and not name.endswith("bias"):
            parameter.data = 1 + 0.2 * draw
        elif parameter.ndim < 2:
            parameter.data = 0.2 * draw
        else:
            parameter.data = 1.3 * draw / parameter[0].numel() ** 0.5
    return model


def _norms_around_one(model: nn.Module) -> nn.Module:
    """Gains of batch and group norms as `look_trained` draws those of norms that have the word in their name."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d | nn.GroupNorm):
            module.weight.data = 1 + module.weight.data - module.weight.data.mean()
    return model


@cache
def _prototype(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == CONVMIXER:
        from timm.models.convmixer import ConvMixer

        return look_trained(ConvMixer(16, 2, kernel_size=3, patch_size=8, num_classes=5)).eval()
    if name in OTHER_HOSTS:
        return _norms_around_one(look_trained(OTHER_HOSTS[name]())).eval()
    if name in TORCHVISION:
        model = _torchvision(name)
        model.image_size = 56 if name == "torchvision_swin" else 32
    else:
        model = unsmooth.create_model(HOSTS[name])
    return look_trained(model).eval()


class _Pickler(pickle.Pickler):
    """Pickles a model without its tensors, which it lists."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        self.tensors.append(value)
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]):
        super().__init__(file)
        self.tensors, self.copied = tensors, dict[int, Any]()

    def persistent_load(self, index: int) -> Tensor:
        return copy.deepcopy(self.tensors[index], self.copied)


@cache
def _pickled(name: str) -> tuple[bytes, list[Tensor]]:
    pickler = _Pickler(file := io.BytesIO())
    pickler.dump(_prototype(name))
    return file.getvalue(), pickler.tensors


def host(name: str) -> nn.Module:
    """A new copy of a small host, in eval mode. Thousands of tests need one; `deepcopy` takes four times as long."""
    structure, tensors = _pickled(name)
    return _Unpickler(io.BytesIO(structure), tensors).load()


@cache
def example(name: str) -> Example:
    return example_input(_prototype(name))


@torch.no_grad()
def outputs(model: nn.Module, name: str, images: int = 2) -> Tensor:
    """The outputs of a host for two images. Hosts with randomness (ViLT shuffles its patches) are seeded."""
    inputs = {key: value.repeat(images, *(1,) * (value.ndim - 1)) for key, value in example(name).items()}
    generator = torch.Generator().manual_seed(1)
    for key, value in inputs.items():
        if value.is_floating_point():
            inputs[key] = torch.randn(value.shape, generator=generator).to(value.dtype)
    torch.manual_seed(2)
    out = first_tensor(run(model, inputs))
    assert out is not None
    return out


_ANATOMIES: dict[Any, Anatomy] = {}


def examine_once(model: nn.Module, example: Example | None = None) -> Anatomy:
    """The anatomy of a model, known from a copy of it: two forward passes less."""
    if example is not None or any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        return examine(model, example)
    key = (tuple(map(_switches, model.modules())),
           tuple((name, p.shape, p.dtype) for name, p in model.named_parameters()))  # fmt: skip
    if key not in _ANATOMIES:
        _ANATOMIES[key] = examine(model)
    return _ANATOMIES[key]


def _switches(module: nn.Module) -> tuple[Any, ...]:
    """What decides, besides its children, which code a module runs: its type, its plain attributes, its attention."""
    plain = [(key, value) for key, value in vars(module).items() if isinstance(value, bool | int | float | str)]
    return type(module), *plain, str(getattr(getattr(module, "config", None), "_attn_implementation", None))


def treat(model: nn.Module, spec: str, seed: int = 3) -> nn.Module:
    """Apply remedies, separated by +, and give them random parameters: many do nothing with their initial ones."""
    with warnings.catch_warnings(), mock.patch("unsmooth.surgery.plan.examine", examine_once):
        warnings.simplefilter("ignore")
        for remedy in spec.split("+"):
            unsmooth.apply(model, remedy)
    generator = torch.Generator().manual_seed(seed)
    for _, patch in unsmooth.parts(model):
        for parameter in patch.parameters():
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator).to(parameter)
    return model


# One canonical case per remedy first, then its other forms.
CASES: tuple[str, ...] = (
    "attn_scale",
    "feat_scale",
    "augmented_shortcut",
    "token_graying",
    "adder_attention",
    "adder",
    "context_broadcast",
    "l2_attention",
    "logistic_attention",
    "no_skip",
    "diverse_patch",
    "layer_scale",
    "shaped_attention",
    "centred_attention",
    "exclusive_attention",
    "graph_filter",
    "gated_attention",
    "value_anchor",
    "talking_heads",
    "re_attention",
    "contra_norm",
    "orthogonal_residual",
    "sigma_reparam",
    "qk_norm",
    "specialized_norm",
    "sink_logit",
    "registers",
    "test_time_register",
    "attention_diversity",
    "gram_anchor",
    "augmented_shortcut(start=identity, branch=attn)",
    "augmented_shortcut(scale=0.75, branch=mlp, count=3, blocks_per_side=2)",
    "token_graying(transform=svd)",
    "token_graying(where=patches, epsilon=0.8)",
    "adder_attention(identity=false)",
    "context_broadcast(kind=scaled, branch=both)",
    "context_broadcast(kind=gate)",
    "context_broadcast(kind=hybrid, branch=attn)",
    "context_broadcast(position=mid)",
    "context_broadcast(position=front, branch=attn)",
    "l2_attention(tau=3.0)",
    "no_skip(branch=both)",
    "layer_scale(init=0.1, branch=mlp)",
    "attn_scale(blocks=1)",
    "shaped_attention(start=paper)",
    "centred_attention(start=paper)",
    "exclusive_attention(start=paper)",
    "graph_filter(order=5)",
    "gated_attention(gate=head)",
    "value_anchor(kind=residual)",
    "value_anchor(start=paper, blocks=1)",
    "contra_norm(branch=both, tau=0.5, scale=0.2)",
    "orthogonal_residual(start=paper, branch=attn)",
    "sigma_reparam(branch=attn)",
    "qk_norm(norm=rms)",
    "specialized_norm(branch=mlp)",
    "sink_logit(start=0)",
    "registers(count=1, bias=0)",
)
# Pairs that do not fit, with a word of the reason. All others must work.
REFUSED: dict[tuple[str, str], str] = {
    **{(host, case): "class token" for host in ("cait", "swin", "pvt_v2", "hf_swin", "torchvision_swin")
       for case in ("context_broadcast(kind=gate)", "context_broadcast(kind=hybrid, branch=attn)")},
    **{(host, case): "class token" for host in ("cait", "swin", "pvt_v2", "hf_swin", "torchvision_swin")
       for case in ("specialized_norm", "specialized_norm(branch=mlp)")},
    **{(host, case): "different numbers of tokens" for host in ("swin", "pvt_v2", "hf_swin", "torchvision_swin")
       for case in ("registers", "registers(count=1, bias=0)", "test_time_register")},
    **{("cait", case): "mixes its maps" for case in ("registers", "registers(count=1, bias=0)")},
    **{(host, case): "do not take extra tokens" for host in ("beit", "eva02")
       for case in ("registers", "registers(count=1, bias=0)", "test_time_register")},
    ("pvt_v2", "token_graying(where=patches, epsilon=0.8)"): "overlap",
    **{(host, case): reason
       for host, reason in (("swin", "windowed"), ("hf_swin", "windowed"), ("torchvision_swin", "windowed"),
                            ("pvt_v2", "size"))
       for case in ("value_anchor", "value_anchor(kind=residual)", "value_anchor(start=paper, blocks=1)")},
}  # fmt: skip

# Remedies of the five papers are tested on all hosts. Other remedies share their mechanisms, and are tested on a host
# of each kind; other options on two of these. The rest is `full`.
FEW = ("deit", "cait", "swin", "hf_vit", "torchvision_vit")
FOR_OPTIONS = ("deit", "swin")
ON_ALL_HOSTS = CASES[: CASES.index("layer_scale") + 1]


def _hosts_of(case: str) -> tuple[str, ...]:
    """Where `make test` tests a case."""
    if case in ON_ALL_HOSTS:
        return ALL
    return FOR_OPTIONS if "(" in case else FEW


def pairs(
    hosts: Iterable[str] = ALL, cases: Sequence[str] = CASES, refused: bool = True, few: bool = False
) -> list[Any]:
    """Pairs of host and case as test parameters, marked full where they are left to `make test-all`.

    `few`: for what hardly depends on the host, every remedy is tested on a host of each kind.
    """

    def tested(name: str, case: str) -> bool:
        return name in _hosts_of(case) and (name in FEW or not few)

    return [
        pytest.param(name, case, marks=() if tested(name, case) else pytest.mark.full)
        for name in hosts
        for case in cases
        if refused or (name, case) not in REFUSED
    ]

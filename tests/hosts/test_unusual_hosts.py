"""Hosts that do things their own way: a remedy is placed right, or refused with a reason, and never silently off."""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from typing import Any

import pytest
import timm
import torch
from timm.models import vision_transformer as vt
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import host, look_trained, outputs, treat
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts import weights
from unsmooth.hosts.examine import examine
from unsmooth.hosts.unseen import way_out


def vit(**options: Any) -> nn.Module:
    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_classes": 5, **options}
    return look_trained(timm.create_model("vit_tiny_patch16_224", **settings)).eval()


def image(seed: int = 0) -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


# Recognition.


@pytest.mark.slow
def test_factorised_attention_is_not_taken_for_a_map() -> None:
    """CoaT takes the softmax of its keys over tokens, and multiplies by raw queries: no attention map."""
    with pytest.raises(unsmooth.UnsmoothError):
        unsmooth.apply(timm.create_model("coat_tiny"), "attn_scale")


@pytest.mark.slow
@pytest.mark.parametrize("side", [128, 224])
def test_channel_attention_is_recognised_when_sizes_agree(side: int) -> None:
    """At 128 pixels XCiT-M has as many tokens as channels in a head."""
    model = timm.create_model("xcit_medium_24_p16_224", depth=1)
    anatomy = examine(model, {"image": torch.randn(1, 3, side, side)})
    assert {a.kind for block in anatomy.blocks for a in block.attentions} == {"channel"}


def test_as_many_tokens_as_head_channels_is_still_attention_over_tokens() -> None:
    model = vit(class_token=False, global_pool="avg", embed_dim=48, num_heads=3)  # 16 tokens, 16 channels a head
    assert [block.attentions[0].kind for block in examine(model).blocks] == ["global", "global"]


@pytest.mark.parametrize(("name", "attentions"), [("ParallelScalingBlock", 2), ("ParallelThingsBlock", 4)])
def test_parallel_blocks_take_what_acts_on_attention(name: str, attentions: int) -> None:
    model = vit(block_fn=getattr(vt, name))
    plain = model(image())
    assert len(unsmooth.apply(model, "attn_scale").sites) == attentions
    plan = unsmooth.plan(model, "feat_scale")
    assert len(plan.sites) == (4 if name == "ParallelThingsBlock" else 0)
    assert all(bool(block.refusal) != bool(block.sites) for block in plan.blocks)
    assert torch.allclose(model(image()), plain, atol=1e-5)
    for _, part in unsmooth.parts(model):
        part.omega.data.fill_(0.5)
    assert not torch.allclose(model(image()), plain, atol=1e-3)


class ScaledKeys(nn.Module):
    """Explicit attention with the scale on the keys, in place of timm's."""

    def __init__(self, attn: Any):
        super().__init__()
        self.qkv, self.proj, self.num_heads, self.scale = attn.qkv, attn.proj, attn.num_heads, attn.scale

    def forward(self, x: Tensor, attn_mask: None = None, is_causal: bool = False) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ (k.transpose(-2, -1) * self.scale)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))


@pytest.mark.parametrize("remedy", ["l2_attention", "adder_attention", "logistic_attention", "attn_scale"])
def test_the_scale_may_be_on_the_keys(remedy: str) -> None:
    fused, explicit = vit(), vit()
    for block in explicit.blocks:
        block.attn = ScaledKeys(block.attn)
    assert torch.allclose(fused(image()), explicit(image()), atol=1e-4)
    assert torch.allclose(treat(fused, remedy)(image()), treat(explicit, remedy)(image()), atol=1e-4)


@pytest.mark.parametrize("remedy", ["attn_scale", "adder_attention", "l2_attention", "logistic_attention", "adder"])
def test_fused_and_explicit_attention_agree(remedy: str) -> None:
    timm.layers.set_fused_attn(False)
    try:
        explicit = vit()
    finally:
        timm.layers.set_fused_attn(True)
    fused = vit()
    assert {a.via for b in examine(explicit).blocks for a in b.attentions} == {"softmax"}
    assert torch.allclose(treat(fused, remedy)(image()), treat(explicit, remedy)(image()), atol=1e-4)


@pytest.mark.slow
def test_position_mlps_are_no_adder_layers() -> None:
    plan = unsmooth.plan(timm.create_model("vit_relpos_small_patch16_224", depth=1), "adder")
    assert not [site for site in plan.sites if "rel_pos" in site]


@pytest.mark.slow
def test_branches_that_change_their_width_get_no_paths() -> None:
    """MViT widens tokens inside a block: those blocks are refused with a reason, and the others run."""
    model = timm.create_model("mvitv2_tiny").eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        plan = unsmooth.apply(model, "augmented_shortcut")
        assert plan.sites
        assert len(plan.refused) == 3
        assert model(torch.randn(1, 3, 224, 224)).isfinite().all()


@pytest.mark.slow
def test_branches_with_channels_in_front_get_no_paths() -> None:
    with pytest.raises(unsmooth.UnsmoothError, match="does not fit this model"):
        unsmooth.apply(timm.create_model("visformer_tiny"), "augmented_shortcut")


# State.


def test_a_forward_on_the_instance_is_refused() -> None:
    model = vit()
    for block in model.blocks:
        block.attn.forward = types.MethodType(type(block.attn).forward, block.attn)
    with pytest.raises(unsmooth.UnsmoothError, match="its own forward set on the instance"):
        unsmooth.apply(model, "attn_scale")


class Unwilling(vt.Attention):
    """A class that cannot be subclassed."""

    def __init_subclass__(cls) -> None:
        raise TypeError("no subclass of mine")


def test_a_class_that_cannot_change_leaves_nothing_behind() -> None:
    model = vit()
    keys = list(model.state_dict())
    model.blocks[1].attn.__class__ = Unwilling
    for _ in range(2):
        with pytest.raises(TypeError, match="no subclass"):
            unsmooth.apply(model, "attn_scale")
        assert list(model.state_dict()) == keys
        assert "_unsmooth_patches" not in model.blocks[1].attn.__dict__
    assert type(model.blocks[0].attn) is vt.Attention


def test_blocks_may_be_removed_from_a_treated_model() -> None:
    model = treat(vit(), "attn_scale+feat_scale")
    model.prune_intermediate_layers([0])
    with pytest.raises(unsmooth.UnsmoothError, match="blocks were removed"):
        unsmooth.apply(model, "context_broadcast")
    unsmooth.remove(model)
    assert not [key for key in model.state_dict() if "unsmooth" in key]
    unsmooth.apply(model, "attn_scale")


def test_a_treated_submodule_is_reported() -> None:
    model = host("hf_vit")
    unsmooth.apply(model.vit, "attn_scale")
    for call in (lambda: unsmooth.apply(model, "attn_scale"), lambda: unsmooth.save(model, "nowhere")):
        with pytest.raises(unsmooth.UnsmoothError, match="the submodule 'vit'"):
            call()


@pytest.mark.parametrize("spec", ["adder", "attn_scale+no_skip", "adder+attn_scale"])
def test_a_probe_sees_each_attention_once(spec: str) -> None:
    model = treat(vit(), spec)
    met: list[int] = []
    with torch.no_grad(), probe(model, on_attention=lambda block, attention, call: met.append(block.index)):
        model(image())
    assert met == [0, 1]


# Folding.


def fold_quietly(model: nn.Module) -> tuple[nn.Module, str]:
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        return unsmooth.fold(model), " ".join(str(note.message) for note in notes)


def test_a_zero_head_does_not_hide_a_wrong_fold() -> None:
    model = treat(vit(), "attn_scale+adder_attention")
    model.head.weight.data.zero_()
    folded, notes = fold_quietly(model)
    assert "attn_scale stays as it is: a later remedy" in notes
    with torch.no_grad():
        assert torch.allclose(folded.forward_features(image()), model.forward_features(image()), atol=1e-4)


def test_a_wrong_fold_that_only_changes_features_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a zero head, a fold that scales the wrong rows must still be taken back."""

    def first_rows(model: nn.Module, block: Any) -> Any:
        rows = weights.value_rows(model, block)
        weight = model.get_submodule(block.attention().core).qkv.weight
        return weights.WeightAndBias(weight[: len(rows.weight)], None)

    monkeypatch.setattr("unsmooth.surgery.fold.value_rows", first_rows)
    model = treat(vit(), "attn_scale")
    model.head.weight.data.zero_()
    _, notes = fold_quietly(model)
    assert "would differ" in notes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_hosts_fold(dtype: torch.dtype) -> None:
    model = treat(vit(), "attn_scale+feat_scale+context_broadcast").to(dtype)
    folded, notes = fold_quietly(model)
    assert notes == ""
    assert {p.dtype for p in folded.parameters()} == {dtype}
    with torch.no_grad():
        wanted = model.float()(image())
        actual = folded(image().to(dtype)).float()
    assert (actual - wanted).abs().max() < 0.1 * wanted.abs().max()


def test_values_without_a_bias_fold() -> None:
    model = treat(vit(qkv_bias=False), "attn_scale")
    folded, notes = fold_quietly(model)
    assert notes == ""
    with torch.no_grad():
        assert torch.allclose(folded(image()), model(image()), atol=1e-4)


def test_outputs_of_hooks_are_not_changed_in_place() -> None:
    """What a user's hook caught stays as it was caught."""
    model = host("deit")
    caught: list[Tensor] = []
    model.blocks[0].attn.register_forward_hook(lambda module, args, out: caught.append(out))
    treat(model, "augmented_shortcut")
    caught.clear()  # what it saw while the model was examined
    outputs(model, "deit")
    model.blocks[0].attn._forward_hooks.popitem()  # the remedy's own hook, to see the bare output
    outputs(model, "deit")
    assert torch.equal(caught[0], caught[1])


# Attention that cannot be seen.


def test_a_kernel_of_hugging_face_is_named_with_the_switch() -> None:
    model = host("hf_vit")
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(
        unsmooth.UnsmoothError, match=r'is flex_attention: call model.set_attn_implementation\("sdpa"\)'
    ):
        unsmooth.plan(Blind(model), "attn_scale")
    assert way_out(host("hf_vit")) == ""


class Blind(nn.Module):
    """A host whose attention is one opaque kernel, as far as a forward pass shows."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


@pytest.mark.parametrize(
    ("library", "switch"), [("xformers", "XFORMERS_DISABLED=1"), ("flash_attn", "use_flash_attn=False")]
)
def test_a_kernel_of_another_library_is_named_with_the_switch(library: str, switch: str) -> None:
    file = types.ModuleType("a_host")
    kernel = types.FunctionType((lambda q, k, v: q).__code__, {})
    kernel.__module__ = f"{library}.ops"
    file.memory_efficient_attention = kernel  # type: ignore[attr-defined]
    host_class = type("Host", (Blind,), {"__module__": "a_host"})
    sys.modules["a_host"] = file
    try:
        with pytest.raises(unsmooth.UnsmoothError, match=f"its code uses {library}: .*{switch}"):
            unsmooth.plan(host_class(nn.Linear(3, 3)), "attn_scale")
    finally:
        del sys.modules["a_host"]


class Factorised(nn.Module):
    """Attention without a map: the softmax is of the keys, over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(3, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.flatten(2).mT).chunk(3, -1)
        return q @ (k.softmax(1).mT @ v)


def test_attention_without_a_map_is_refused_with_the_reason() -> None:
    model = nn.Sequential(Factorised())
    with pytest.raises(unsmooth.UnsmoothError, match="factorised or separable"):
        unsmooth.plan(model, "attn_scale")


def test_nested_tensors_are_refused_with_the_reason() -> None:
    na_vit = importlib.import_module("vit_pytorch.na_vit_nested_tensor")
    model = na_vit.NaViT(
        image_size=32, patch_size=8, num_classes=5, dim=24, depth=1, heads=2, dim_head=12, mlp_dim=24
    ).eval()
    with pytest.raises(unsmooth.UnsmoothError, match="attention on nested tensors"):
        examine(model, {"image": [torch.randn(3, 32, 32)]})

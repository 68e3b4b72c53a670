"""The backbones of `unsmooth.models`, small: the remedies that papers put on them, and the interface of timm."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import look_trained, treat
from tests.surgery.test_laws import fingerprint, same
from unsmooth.errors import UnsmoothError
from unsmooth.surgery.check import checkup

# Small ones, with weights that look trained.

_VIT = "img_size=32, patch_size=8, embed_dim=48, num_heads=3, num_classes=5"
SMALL = {
    "deit": f"deit_small_24_patch16_224({_VIT}, depth=3)",
    "pvt": "pvt_tiny(img_size=64, embed_dims=[16, 32, 48, 64], depths=[2, 1, 1, 2], num_heads=[1, 2, 3, 4], "
    "mlp_ratios=[2, 2, 2, 2], sr_ratios=[4, 2, 2, 1], num_classes=5)",
    "localvit": f"localvit_tiny_patch16_224({_VIT}, depth=2, reduction=16)",
    "t2t": f"t2t_vit_14({_VIT}, depth=2, token_dim=16)",
    "t2t_t": f"t2t_vit_t_14({_VIT}, depth=2, token_dim=16)",
    "deepvit": f"deepvit_small({_VIT}, depth=3, re_attention=2)",
    "deepvit_plain": f"deepvit_patch16_224({_VIT}, depth=2)",
    "cct": "cct_2_3x2_32(img_size=32, convolutions=3, embed_dim=48, num_heads=3, num_classes=5)",
    "vit_lite": f"vit_lite_6_4_32({_VIT}, depth=2)",
}
BLOCKS = {
    "deit": ["blocks.0", "blocks.1", "blocks.2"],
    "pvt": ["block1.0", "block1.1", "block2.0", "block3.0", "block4.0", "block4.1"],
    "localvit": ["blocks.0", "blocks.1"],
    "t2t": ["blocks.0", "blocks.1"],
    "t2t_t": ["blocks.0", "blocks.1"],
    "deepvit": ["blocks.0", "blocks.1", "blocks.2"],
    "deepvit_plain": ["blocks.0", "blocks.1"],
    "cct": ["blocks.0", "blocks.1"],
    "vit_lite": ["blocks.0", "blocks.1"],
}
PAPERS = {  # the remedies that papers put on each of them, and those that the others are compared by
    "deit": ("attn_scale", "feat_scale", "context_broadcast", "token_graying", "augmented_shortcut"),
    "pvt": ("augmented_shortcut", "context_broadcast", "attn_scale", "feat_scale"),
    "localvit": ("context_broadcast", "attn_scale", "feat_scale"),
    "t2t": ("augmented_shortcut", "attn_scale", "feat_scale", "context_broadcast"),
    "t2t_t": ("augmented_shortcut",),
    "deepvit": ("attn_scale", "feat_scale"),
    "deepvit_plain": ("attn_scale", "feat_scale"),
    "cct": ("attn_scale", "feat_scale", "context_broadcast", "token_graying", "augmented_shortcut", "layer_scale"),
    "vit_lite": ("attn_scale", "feat_scale", "context_broadcast", "layer_scale"),
}
EXACT = ("augmented_shortcut(start=identity)", "context_broadcast(kind=scaled)")


@cache
def _prototype(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = look_trained(unsmooth.create_model(SMALL[name])).eval()
    generator = torch.Generator().manual_seed(5)
    for module in model.modules():  # running means of zero and variances of one would hide a norm that is left out
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(0.2 * torch.randn(module.num_features, generator=generator))
            module.running_var.copy_(0.5 + torch.rand(module.num_features, generator=generator))
    return model


def small(name: str) -> nn.Module:
    return copy.deepcopy(_prototype(name))


def images(name: str, count: int = 2) -> Tensor:
    side = 64 if name == "pvt" else 32
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def outputs(model: nn.Module, name: str) -> Tensor:
    out: Tensor = model(images(name))
    return out


@pytest.mark.parametrize(("name", "remedy"), [(n, r) for n, all_of in PAPERS.items() for r in (*all_of, *EXACT)])
def test_the_remedies_of_the_papers_are_applied_and_removed(name: str, remedy: str) -> None:
    model = small(name)
    before, plain = fingerprint(model), outputs(model, name)
    plan = unsmooth.apply(model, remedy)
    assert not plan.refused, plan.refused
    assert len(plan.blocks) == (1 if remedy == "token_graying" else len(BLOCKS[name]))
    if plan.exact:
        torch.testing.assert_close(outputs(model, name), plain, rtol=1e-4, atol=1e-5)
    else:
        assert not torch.allclose(outputs(model, name), plain, atol=1e-3)
    unsmooth.remove(model)
    same(before, fingerprint(model))
    assert torch.equal(outputs(model, name), plain)
    assert not torch.allclose(outputs(treat(model, remedy), name), plain, atol=1e-3)  # once learned


def test_a_gain_after_convolutions_is_not_folded() -> None:
    """The MLP of LocalViT ends in a convolution; its linear layers are those of squeeze and excitation."""
    model = treat(small("localvit"), "layer_scale")
    with pytest.warns(UserWarning, match="layer_scale stays as it is: no linear layer is directly before it"):
        folded = unsmooth.fold(model)
    torch.testing.assert_close(outputs(folded, "localvit"), outputs(model, "localvit"))


@pytest.mark.parametrize("name", SMALL)
def test_a_checkup_finds_every_block(name: str) -> None:
    actual = checkup(SMALL[name])
    assert [block.name for block in actual.anatomy.blocks] == BLOCKS[name]
    assert all(block.residuals == ("attn", "mlp") for block in actual.anatomy.blocks)
    outside = [line.partition(":")[0] for line in actual.skipped]
    assert outside == ([f"tokens_to_token.attention{i}.attn" for i in (1, 2)] if name == "t2t_t" else [])


@pytest.mark.parametrize("name", SMALL)
def test_a_diagnosis_measures_every_block(name: str) -> None:
    model = small(name)
    before = fingerprint(model)
    diagnosis = unsmooth.diagnose(model, images(name, 4), reference=False)
    same(before, fingerprint(model))
    for vital in ("token_cosine", "effective_rank", "high_frequency_ratio"):
        assert len(diagnosis[vital].mean) == len(BLOCKS[name])
        assert all(value > 0 for value in diagnosis[vital].mean)


def test_reduced_keys_are_pooled_kv() -> None:
    kinds = [block.attention().kind for block in checkup(SMALL["pvt"]).anatomy.blocks]
    assert kinds == ["pooled-kv"] * 4 + ["global"] * 2


# The interface of timm.


@pytest.mark.parametrize("name", SMALL)
def test_features_head_and_intermediate_maps(name: str) -> None:
    model, x = small(name), images(name)
    with torch.no_grad():
        tokens = model.forward_features(x)
        torch.testing.assert_close(model.forward_head(tokens), model(x))
        maps = model.forward_intermediates(x, indices=[0, 1], output_fmt="NCHW", intermediates_only=True)
        last, every = model.forward_intermediates(x, norm=True)
    torch.testing.assert_close(last, tokens)
    wanted = [(16, 16, 16), (32, 8, 8)] if name == "pvt" else [(48, 4, 4)] * 2
    assert [tuple(m.shape[1:]) for m in maps] == wanted
    patches = every[-1].flatten(2).transpose(1, 2)
    torch.testing.assert_close(patches, tokens[:, -patches.shape[1] :])  # after the class token, if there is one
    model.reset_classifier(3)
    assert model(x).shape == (2, 3)
    assert model.get_classifier().out_features == 3
    model.reset_classifier(0)
    assert model(x).shape == (2, model.num_features)


@pytest.mark.parametrize("name", SMALL)
def test_training_reaches_every_parameter(name: str) -> None:
    from timm.optim import param_groups_layer_decay

    torch.manual_seed(0)
    rates = {"drop_rate": 0.1, "pos_drop_rate": 0.1, "proj_drop_rate": 0.1, "attn_drop_rate": 0.1}
    model = look_trained(unsmooth.create_model(SMALL[name], drop_path_rate=0.1, **rates)).train()
    model(images(name, 4)).square().mean().backward()
    trained = {key for key, p in model.named_parameters() if p.requires_grad}
    assert {key for key, p in model.named_parameters() if p.grad is not None and p.grad.isfinite().all()} == trained
    fixed = {key for key, _ in model.named_parameters()} - trained
    features = {f"tokens_to_token.attention{i}.w" for i in (1, 2)}
    assert fixed == {"t2t": {"pos_embed", *features}, "t2t_t": {"pos_embed"}}.get(name, set())
    groups = param_groups_layer_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay(), layer_decay=0.9)
    assert sum(len(group["params"]) for group in groups) == len(trained)
    assert len({group["lr_scale"] for group in groups}) >= len(BLOCKS[name])


@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_the_same_with_checkpointing(name: str) -> None:
    actual = []
    for enable in (False, True):
        model = small(name)  # in eval mode: norms over batches would count a repeated pass twice
        model.set_grad_checkpointing(enable)
        model(images(name)).square().mean().backward()
        actual.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    assert actual[0].keys() == actual[1].keys()
    for key, grad in actual[0].items():
        torch.testing.assert_close(actual[1][key], grad)


@pytest.mark.parametrize("name", SMALL)
def test_timm_makes_a_backbone_of_it(name: str) -> None:
    for _ in range(2):  # the second of a name, too
        backbone = timm.create_model(
            SMALL[name].partition("(")[0], **_options(name), features_only=True, out_indices=(0, 1)
        )
        maps = backbone(images(name))
        assert [m.shape[1] for m in maps] == backbone.feature_info.channels()
        side = images(name).shape[-1]
        assert [side // m.shape[-1] for m in maps] == backbone.feature_info.reduction()


@pytest.mark.parametrize("name", SMALL)
def test_one_channel_and_no_classes(name: str) -> None:
    model = timm.create_model(SMALL[name].partition("(")[0], **_options(name), in_chans=1).eval()
    model.reset_classifier(0)
    assert model(images(name)[:, :1]).shape == (2, model.num_features)


def _options(name: str) -> dict[str, object]:
    from unsmooth.spec import parse

    host = parse(SMALL[name]).host
    assert host is not None
    return dict(host.options)


@pytest.mark.parametrize("name", SMALL)
def test_a_saved_model_is_restored(name: str, tmp_path: Path) -> None:
    model = treat(small(name), "feat_scale")
    unsmooth.save(model, tmp_path)
    assert torch.equal(outputs(unsmooth.load(tmp_path).eval(), name), outputs(model, name))


@pytest.mark.parametrize("name", ["pvt", "t2t", "localvit", "deepvit"])
def test_a_checkpoint_for_another_size_loads_with_positions_resampled(name: str, tmp_path: Path) -> None:
    model = small(name)
    torch.save({"model": model.state_dict()}, tmp_path / "small.pth")
    side = images(name).shape[-1]
    larger = unsmooth.load(tmp_path / "small.pth", SMALL[name].replace(f"img_size={side}", f"img_size={2 * side}"))
    assert larger.eval()(torch.randn(1, 3, 2 * side, 2 * side)).shape == (1, 5)
    weights, own = larger.state_dict(), model.state_dict()
    other = {key for key, value in own.items() if value.shape != weights[key].shape}
    assert other == ({f"pos_embed{i}" for i in (1, 2, 3, 4)} if name == "pvt" else {"pos_embed"})
    assert all(torch.equal(own[key], weights[key]) for key in own.keys() - other)


def test_pvt_takes_images_of_any_size() -> None:
    """A constant position stays what it is, so a larger image of one colour gives the same maps.

    Not in the last stage, where the class token weighs less among more patches.
    """
    model = small("pvt")
    for i in range(1, 5):
        position = getattr(model, f"pos_embed{i}")
        position.data[:] = position.data[:, -1:]
    maps = [
        model.forward_intermediates(torch.full((1, 3, *size), 0.3), intermediates_only=True)
        for size in ((64, 64), (96, 128))
    ]
    assert [tuple(m.shape[-2:]) for m in maps[1]] == [(24, 32), (12, 16), (6, 8), (3, 4)]
    for usual, other in zip(maps[0][:3], maps[1][:3], strict=True):
        torch.testing.assert_close(other, usual[:, :, :1, :1].expand_as(other), rtol=1e-3, atol=1e-4)


def test_localvit_takes_images_that_are_not_square() -> None:
    model = look_trained(unsmooth.create_model(SMALL["localvit"].replace("img_size=32", "img_size=[16, 32]"))).eval()
    x = torch.randn(1, 3, 16, 32)
    maps = model.forward_intermediates(x, indices=[0], intermediates_only=True)
    assert maps[0].shape == (1, 48, 2, 4)
    assert model.blocks[0].conv.grid_size == (2, 4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pvt_tiny(sr_ratios=[8, 4, 2, 2])", "End sr_ratios with 1"),
        ("pvt_tiny(depths=[1, 1])", "one value of embed_dims"),
        ("pvt_tiny(global_pool=max)", "Use token or avg"),
        ("t2t_vit_14(tokens_type=perform)", "performer"),
        ("t2t_vit_14(patch_size=6)", "patch_size divisible by 4"),
    ],
)
def test_invalid_sizes_raise(spec: str, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.create_model(spec)


# ConvMixer without its skip.


@pytest.mark.parametrize(
    ("spec", "blocks"),
    [
        ("convmixer_tiny(dim=16, depth=3)", 3),
        pytest.param("convmixer_768_32", 32, marks=pytest.mark.slow),
        pytest.param("convmixer_1024_20_ks9_p14", 20, marks=pytest.mark.slow),
    ],
)
def test_no_skip_works_on_any_convmixer(spec: str, blocks: int) -> None:
    """`blocks` of (mixer with a skip, then the rest); timm fixes the sizes of its own, so only the image is small."""
    torch.manual_seed(0)
    model = look_trained(unsmooth.create_model(f"{spec}+no_skip")).eval()
    assert [len(unsmooth.plan(unsmooth.create_model(spec), "no_skip").blocks)] == [blocks]
    plain = unsmooth.create_model(spec).eval()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 56, 56)
    with torch.no_grad():
        tokens = plain.stem(x)
        for residual, *rest in plain.blocks:
            convolution, activation, norm = residual.fn
            tokens = nn.Sequential(*rest)(norm(activation(convolution(tokens))))
        wanted = plain.head(tokens.mean(dim=(2, 3)))
        torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(plain(x), wanted, atol=1e-2)

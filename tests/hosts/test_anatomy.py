"""What is read off a forward pass: the hosts that must work, and families that have no line of their own."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import timm
import torch
from torch import nn

import unsmooth
from tests.support.small_hosts import ALL, CONVMIXER, host
from tests.surgery.test_laws import fingerprint, same
from unsmooth.hosts.examine import examine

# kind of attention, how it is run, tokens and heads of the first block, whether there is a class token
EXPECTED = {
    "deit": ("global", "sdpa", 17, 3, True),
    "deit_distilled": ("global", "sdpa", 18, 3, True),
    "deit3": ("global", "sdpa", 17, 3, True),
    "dinov2": ("global", "sdpa", 17, 3, True),
    "dinov2_registers": ("global", "sdpa", 21, 3, True),
    "cait": ("global", "softmax", 16, 3, False),
    "swin": ("windowed", "softmax", 196, 2, False),
    "pvt_v2": ("pooled-kv", "sdpa", 3136, 1, False),
    "beit": ("global", "sdpa", 17, 3, True),
    "eva02": ("global", "sdpa", 17, 3, True),
    "hf_vit": ("global", "sdpa", 17, 3, True),
    "hf_deit": ("global", "sdpa", 18, 3, True),
    "hf_dinov2": ("global", "sdpa", 17, 3, True),
    "hf_clip": ("global", "sdpa", 17, 3, True),
    "hf_swin": ("windowed", "sdpa", 196, 2, False),
    "hf_vilt": ("global", "softmax", 21, 3, True),
    "torchvision_vit": ("global", "sdpa", 17, 3, True),
    "torchvision_swin": ("windowed", "softmax", 196, 2, False),
}


@pytest.mark.parametrize("name", ALL)
def test_hosts(name: str) -> None:
    model = host(name)
    before = fingerprint(model)
    anatomy = examine(model)
    same(before, fingerprint(model))
    kind, via, tokens, heads, class_token = EXPECTED[name]
    first = anatomy.blocks[0]
    assert (first.attentions[0].kind, first.attentions[0].via) == (kind, via)
    assert (first.tokens, first.attentions[0].heads, first.class_token) == (tokens, heads, class_token)
    assert all(block.residuals == ("attn", "mlp") for block in anatomy.blocks)
    assert all(block.reasons == {} for block in anatomy.blocks)
    assert all(block.attn and block.attn.front and block.attn.end for block in anatomy.blocks)
    assert all(block.mlp and block.mlp.front and block.mlp.mid and block.mlp.end for block in anatomy.blocks)
    assert all(sum(linear.projections for linear in block.attn.linears) == 4 for block in anatomy.blocks if block.attn)
    assert anatomy.patch_embed is not None
    assert anatomy.patch_embed.tokens == {"pvt_v2": 3136}.get(name, 196 if "swin" in name else 16)


def test_cait_class_attention_is_not_treated() -> None:
    assert [line.split(":")[0] for line in examine(host("cait")).skipped] == [
        "blocks_token_only.0",
        "blocks_token_only.1",
    ]


def test_convmixer_has_a_skip_and_no_attention() -> None:
    blocks = examine(host(CONVMIXER)).blocks
    assert [block.residuals for block in blocks] == [("attn",)] * 2
    assert all("no softmax attention" in block.reasons["attn"] for block in blocks)


def test_examining_leaves_no_trace_after_an_exception() -> None:
    model = host("deit").train()
    model.blocks[1].mlp.register_forward_hook(lambda *_: 1 / 0)
    before, random = fingerprint(model), torch.random.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        examine(model)
    same(before, fingerprint(model))
    assert torch.equal(random, torch.random.get_rng_state())


def test_an_example_replaces_the_default_input() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, dynamic_img_size=True)
    tokens = examine(model, {"image": torch.randn(1, 3, 64, 96)}).blocks[0].tokens
    assert tokens == 4 * 6 + 1


# Families that unsmooth has no line for: the labels of their attention, in order of first appearance.
STRANGERS = {
    "xcit_nano_12_p16_224": {"channel"},
    "convit_tiny": {"global"},
    "davit_tiny": {"windowed", "channel", "global"},
    "mvitv2_tiny": {"pooled-kv", "global", "pooled-q"},
    "twins_svt_small": {"windowed", "pooled-kv", "global"},
    "swinv2_cr_tiny_ns_224": {"windowed", "global"},
    "levit_128s": {"global", "pooled-q"},
    "levit_conv_128s": {"global", "pooled-q"},
    "shvit_s1": {"global"},
    "efficientvit_m0": {"windowed", "global"},
    "vit_base_patch16_siglip_224": {"global"},
    "vit_small_patch16_dinov3": {"global"},
    "maxvit_rmlp_pico_rw_256": {"windowed", "global"},
    "nest_tiny": {"windowed", "global"},
    "pit_ti_224": {"global"},
    "crossvit_9_240": {"global"},
    "tnt_s_patch16_224": {"windowed", "global"},
}


SHALLOW: dict[str, dict[str, Any]] = {
    "vit_base_patch16_siglip_224": {"depth": 2},
    "vit_small_patch16_dinov3": {"depth": 2},
    "xcit_nano_12_p16_224": {"depth": 2},
    "tnt_s_patch16_224": {"depth": 2},
    "davit_tiny": {"depths": (1, 1, 1, 1)},
}
LARGE = {
    "maxvit_rmlp_pico_rw_256",
    "swinv2_cr_tiny_ns_224",
    "nest_tiny",
    "mvitv2_tiny",
    "twins_svt_small",
    "vit_base_patch16_siglip_224",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.full if n in LARGE else ()) for n in STRANGERS])
def test_unknown_architectures_are_examined_and_treated(name: str) -> None:
    """Labels as expected; what applies comes off again bit for bit; what does not has a reason."""
    torch.manual_seed(0)
    model = timm.create_model(name, **SHALLOW.get(name, {})).eval()
    size = model.pretrained_cfg["input_size"]
    x = torch.randn(1, *size)
    anatomy = examine(model)
    assert {attention.kind for block in anatomy.blocks for attention in block.attentions} == STRANGERS[name]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = model(x)
        for remedy in ("attn_scale", "feat_scale", "context_broadcast", "no_skip"):
            plan = unsmooth.plan(model, remedy)
            assert all(block.sites or block.refusal for block in plan.blocks)
            if not plan.sites:
                continue
            unsmooth.apply(model, remedy)
            assert torch.allclose(model(x), plain, atol=1e-4) or not plan.exact
            unsmooth.remove(model)
            assert torch.equal(model(x), plain)


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(unsmooth.UnsmoothError, match="ran no attention"):
        unsmooth.plan(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), "attn_scale")

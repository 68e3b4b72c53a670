"""Sinks that do nothing and sinks that broadcast, planted in a host: the diagnosis tells them apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unsmooth
from unsmooth.diagnosis.registry import SINKS
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.results.verdict import Finding

HOST = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=32, num_heads=4, depth=3, num_classes=5)"
CHANNEL = 0  # where the class token is large and no other token is


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def planted(block: int, value: float | None) -> nn.Module:
    """A host whose class token is a sink of every head of a block, with values of a given size; None: no sink."""
    torch.manual_seed(0)
    model = unsmooth.create_model(HOST)
    with torch.no_grad():
        model.pos_embed.zero_()
        model.cls_token.zero_()
        model.cls_token[..., CHANNEL] = 50.0
        for layer in model.blocks:
            layer.attn.qkv.weight.normal_(std=0.2)
            layer.attn.qkv.weight[:, CHANNEL] = 0.0
        if value is not None:
            qkv = model.blocks[block].attn.qkv
            _, k, v = qkv.weight.view(3, 4, 8, 32)
            qkv.bias.view(3, 4, 8)[0, :, 0] = 4.0  # every query asks for one direction
            k[:, 0] = 0.0
            k[:, 0, CHANNEL] = 2.0  # which only the key of the class token has
            v[..., CHANNEL] = value
            other = [c for c in range(32) if c != CHANNEL]
            v[..., other] -= v[..., other].mean(dim=-1, keepdim=True)  # a normed class token is constant elsewhere
    return model.eval()


def found(diagnosis: Diagnosis) -> dict[str, Finding]:
    return {finding.key: finding for finding in diagnosis.findings}


def diagnosed(model: nn.Module) -> Diagnosis:
    return unsmooth.diagnose(model, images(4), "default,sinks", reference=False, progress=False)


def test_sinks_that_do_nothing_are_told_from_sinks_that_broadcast() -> None:
    idle, loud = found(diagnosed(planted(1, 0.0))), found(diagnosed(planted(1, 2.0)))
    assert idle["idle_sinks"].blocks == [1] and "broadcasting_sinks" not in idle
    assert loud["broadcasting_sinks"].blocks == [1] and "idle_sinks" not in loud
    assert [row.spec.split("(")[0] for row in idle["idle_sinks"].remedies] == ["gated_attention", "sink_logit"]
    assert [row.spec.split("(")[0] for row in loud["broadcasting_sinks"].remedies] == [
        "registers", "test_time_register",
    ]  # fmt: skip
    assert "4 heads attend" in idle["idle_sinks"].text and "write little" in idle["idle_sinks"].text
    assert all(row.limit is not None for row in loud["broadcasting_sinks"].evidence[:2])


def test_a_host_without_sinks_has_neither_finding_and_says_why_it_has_no_value() -> None:
    diagnosis = diagnosed(planted(1, None))
    assert not {"idle_sinks", "broadcasting_sinks"} & found(diagnosis).keys()
    skipped = diagnosis.vitals["sink_value_norm"].skipped
    assert set(skipped.values()) == {"no head has an attention sink"} and set(skipped) == {0, 1, 2}


def test_the_values_of_the_planted_sinks() -> None:
    diagnosis = diagnosed(planted(1, 2.0))
    assert diagnosis.vitals["attention_sink"].parts[""][1].mean > 0.95  # type: ignore[union-attr, operator]
    assert diagnosis.vitals["attention_sink"].parts["count"][1].mean == 1.0  # type: ignore[union-attr]
    assert diagnosis.vitals["sink_output"].parts["rank"][1].mean < 1.05  # type: ignore[union-attr, operator]
    assert diagnosis.vitals["spectral_gap"].parts[""][1].mean > 0.9  # type: ignore[union-attr, operator]


def test_the_large_channel_of_the_class_token_is_what_int8_suffers_from() -> None:
    model = planted(1, None)
    with torch.no_grad():
        model.get_parameter("cls_token")[..., CHANNEL] = 5000.0
    finding = found(diagnosed(model))["outlier_activations"]
    assert finding.blocks == [0, 1, 2] and "One int8 scale for all of them" in finding.text
    assert [row.spec.split("(")[0] for row in finding.remedies] == ["gated_attention", "sink_logit"]


def test_the_group_is_measured_on_request_and_on_hosts_without_values_per_head() -> None:
    assert not set(SINKS) & set(unsmooth.diagnose(HOST, images(2), reference=False, progress=False).keys())
    channel = "xcit_nano_12_p16_224(img_size=32, depth=2, embed_dim=32, num_heads=2)"
    diagnosis = unsmooth.diagnose(channel, images(2), "sinks", reference=False, progress=False)
    assert "channels" in diagnosis.vitals["value_cosine"].skipped[0]
    assert diagnosis.vitals["outlier_channels"].parts[""][0] is not None


@pytest.mark.parametrize("host", ["swin_tiny_patch4_window7_224(img_size=56, embed_dim=24)", HOST])
def test_values_and_outputs_are_those_of_the_host(host: str) -> None:
    """cos(Av, v) of the probe, against the output of the first attention that its projection receives."""
    torch.manual_seed(0)
    model = unsmooth.create_model(host).eval()
    x = torch.randn(2, 3, *((56, 56) if "swin" in host else (32, 32)))
    attention = next(module for name, module in model.named_modules() if name.endswith("attn"))
    seen: dict[str, torch.Tensor] = {}
    qkv = attention.get_submodule("qkv").register_forward_hook(lambda m, a, out: seen.update(qkv=out))
    proj = attention.get_submodule("proj").register_forward_hook(lambda m, a, out: seen.update(out=a[0]))
    model(x)
    qkv.remove(), proj.remove()
    v, out = seen["qkv"].chunk(3, dim=-1)[2], seen["out"]
    heads = attention.num_heads
    wanted = torch.cosine_similarity(*(t.unflatten(-1, (heads, -1)) for t in (v, out)), dim=-1).mean()
    diagnosis = unsmooth.diagnose(model, x, "output_value_cosine", blocks="0", reference=False, progress=False)
    assert diagnosis["output_value_cosine"].mean[0] == pytest.approx(wanted.item(), abs=1e-5)

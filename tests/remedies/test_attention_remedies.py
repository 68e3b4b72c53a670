"""What the remedies of attention, norms and residual sums promise, in cases with a known answer."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import HOSTS, example, host, outputs, treat
from unsmooth.diagnosis.probe import probe
from unsmooth.hosts.anatomy import Attention, Block
from unsmooth.remedies.orthogonal_residual import OrthogonalPart
from unsmooth.remedies.sigma_reparam import SpectralWeight
from unsmooth.seam.intercept import AttentionCall


def calls(model: nn.Module, name: str = "deit") -> list[tuple[Tensor, Tensor, Tensor]]:
    """Values, output and effective map of the attention of each block."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def record(block: Block, attention: Attention, call: AttentionCall) -> None:
        seen.append((call.v, call.attend(call.v), call.map()))

    with probe(model, on_attention=record):
        outputs(model, name)
    return seen


def uniform(model: nn.Module) -> nn.Module:
    """Queries of zero: every map is uniform."""
    for block in model.blocks:
        width = block.attn.qkv.weight.shape[1]
        block.attn.qkv.weight.data[:width] = 0
        block.attn.qkv.bias.data[:width] = 0
    return model


def test_shaped_attention_starts_as_the_identity_where_maps_are_uniform() -> None:
    model = uniform(host("deit"))
    unsmooth.apply(model, "shaped_attention(start=paper)")
    for v, out, effective in calls(model):
        torch.testing.assert_close(out, v, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(effective, torch.eye(17).expand_as(effective), rtol=0, atol=1e-6)


def test_shaped_attention_keeps_tokens_apart_without_a_skip() -> None:
    """Attention alone leaves one direction: the product of maps tends to rank one. The identity in the map does not."""

    def similarity(remedies: str) -> float:
        model = unsmooth.create_model(
            f"deit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=48, depth=12)+{remedies}"
        ).eval()
        with torch.no_grad():
            tokens = model.forward_features(torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
        unit = nn.functional.normalize(tokens[0], dim=-1)
        return float((unit @ unit.T).mean())

    torch.manual_seed(0)
    collapsed = similarity("no_skip")
    torch.manual_seed(0)
    cured = similarity("no_skip+shaped_attention(start=paper)")
    assert collapsed > 0.99
    assert cured < 0.5


def test_centred_attention_removes_uniform_maps() -> None:
    model = uniform(host("deit"))
    unsmooth.apply(model, "centred_attention(start=paper)")
    for _, out, effective in calls(model):
        assert out.abs().max() < 1e-5
        assert effective.sum(-1).abs().max() < 1e-6


def test_exclusive_attention_is_orthogonal_to_the_own_value() -> None:
    model = host("deit")
    unsmooth.apply(model, "exclusive_attention(start=paper)")
    for v, out, _ in calls(model):
        cosine = nn.functional.cosine_similarity(out, v, dim=-1)
        assert cosine.abs().max() < 1e-5


def test_exclusive_attention_of_values_of_zero_is_finite() -> None:
    model = host("deit")
    unsmooth.apply(model, "exclusive_attention(start=paper)")
    model.blocks[0].attn.qkv.weight.data.zero_()
    model.blocks[0].attn.qkv.bias.data.zero_()
    image = torch.randn(1, 3, 32, 32, requires_grad=True)
    model(image).sum().backward()
    assert image.grad is not None and image.grad.isfinite().all()


def test_the_power_of_a_graph_filter_is_exact_for_a_projection() -> None:
    """A uniform map is its own power, so the extrapolation A + (K−1)(A² − A) is A."""
    model = uniform(host("deit"))
    unsmooth.apply(model, "graph_filter(order=7)")
    for _, part in unsmooth.parts(model):
        part.w_1.data.zero_()
        part.w_k.data.fill_(1.0)
    for v, out, _ in calls(model):
        torch.testing.assert_close(out, v.mean(-2, keepdim=True).expand_as(v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["deit", "swin", "torchvision_vit", "torchvision_swin", "hf_vit"])
@pytest.mark.parametrize("gate", ["element", "head"])
def test_each_output_is_gated_by_its_own_token(name: str, gate: str) -> None:
    """In every layout of tokens: the tokens that the first linear layer reads, row by row, give the gates."""
    model, met = host(name), 0
    unsmooth.apply(model, f"gated_attention(gate={gate})")

    def record(block: Block, attention: Attention, call: AttentionCall) -> None:
        nonlocal met
        patch = next(part for at, part in unsmooth.parts(model) if at.startswith(f"{attention.core}."))
        open_ = call.attend(call.v)
        patch.weight.data = 0.3 * torch.randn(patch.weight.shape, generator=torch.Generator().manual_seed(0))
        gated = call.attend(call.v)
        assert call.x is not None
        rows = call.x.reshape(-1, call.x.shape[-1])
        gates = 2 * torch.sigmoid(rows @ patch.weight.T).reshape(len(rows), attention.heads, -1)
        outs = [y.movedim(attention.head_axis, -2).reshape(len(rows), attention.heads, -1) for y in (open_, gated)]
        torch.testing.assert_close(outs[1], outs[0] * gates, rtol=1e-4, atol=1e-5)
        patch.weight.data.zero_()
        met += 1

    with torch.no_grad(), probe(model, on_attention=record):
        outputs(model, name)
    assert met == len(list(unsmooth.parts(model)))


def test_value_anchors_read_the_values_of_their_own_pass_and_copy() -> None:
    model = treat(host("deit"), "value_anchor")
    image = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = model(image)
        copied = copy.deepcopy(model)
        model(torch.zeros_like(image))  # the copy does not read these
        assert torch.equal(copied(image), want)
        assert torch.equal(model(image), want)
    first, later = (block.attn.unsmooth_value_anchor for block in copied.blocks)
    assert later.first is first is not model.blocks[0].attn.unsmooth_value_anchor


def test_a_value_anchor_needs_a_later_block() -> None:
    with pytest.raises(unsmooth.UnsmoothError, match="no block after the first"):
        unsmooth.apply(host("deit"), "value_anchor", blocks="0")


def test_residual_updates_are_orthogonal_to_the_stream() -> None:
    x, f = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    added = OrthogonalPart(8, "paper").double()(x, f)
    assert (x * added).sum(-1).abs().max() < 1e-5
    first = OrthogonalPart(8, "paper").double()(x.mT, f.mT)  # channels first
    torch.testing.assert_close(first.mT, added)


def test_sigma_reparam_follows_the_spectral_norm_in_training() -> None:
    """The weight moves; after some steps of power iteration the treated weight has the norm γ again."""
    model = host("deit")
    unsmooth.apply(model, "sigma_reparam")
    layer = model.blocks[1].unsmooth_sigma_reparam_attn_qkv
    assert isinstance(layer, SpectralWeight)
    weight = model.blocks[1].attn.qkv.weight
    norm = torch.linalg.matrix_norm(weight.detach(), ord=2)
    assert layer.gamma.item() == pytest.approx(float(norm), rel=1e-5)
    weight.data = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * 3
    model.train()
    for _ in range(300):
        layer(weight)
    model.eval()
    treated = layer(weight).detach()
    assert float(torch.linalg.matrix_norm(treated, ord=2)) == pytest.approx(layer.gamma.item(), rel=1e-3)


def test_the_scores_of_qk_norm_are_bounded() -> None:
    """|P| ≤ √c for gains of one: both vectors have length √c, and the product is divided by √c."""
    model = host("deit")
    unsmooth.apply(model, "qk_norm(norm=rms)")
    for block in model.blocks:
        block.attn.qkv.weight.data *= 100
    tops: list[float] = []

    def record(block: Block, attention: Attention, call: AttentionCall) -> None:
        tops.append(float(call.scores().abs().max()) / attention.head_channels**0.5)

    with probe(model, on_attention=record):
        outputs(model, "deit")
    assert tops and max(tops) <= 1 + 1e-5


@pytest.mark.parametrize("remedy", ["sigma_reparam", "specialized_norm"])
def test_remedies_that_start_from_the_host_start_again_from_loaded_weights(remedy: str, tmp_path: Path) -> None:
    """A checkpoint of the plain host is loaded into a treated model: the start is exact for those weights too."""
    plain = host("deit")
    save_file({name: value.contiguous() for name, value in plain.state_dict().items()}, tmp_path / "plain.safetensors")
    treated = unsmooth.load(tmp_path / "plain.safetensors", f"{HOSTS['deit']}+{remedy}").eval()
    image = example("deit")["image"]
    with torch.no_grad():
        torch.testing.assert_close(treated(image), plain(image), rtol=1e-4, atol=1e-4)


def test_registers_stay_inside_the_blocks() -> None:
    """Outside of the blocks a host has its own tokens; inside, the registers pass from block to block."""
    model = treat(host("deit"), "registers(count=3)")
    inside: list[int] = []
    outside: list[int] = []
    for block in model.blocks:
        block.norm1.register_forward_hook(lambda _, __, out: inside.append(out.shape[1]))
        block.register_forward_hook(lambda _, __, out: outside.append(out.shape[1]))
    outputs(model, "deit")
    assert inside == [20, 20]
    assert outside == [17, 17]


def test_sinks_and_registers_open_as_their_logits_grow() -> None:
    """Of a row of a map, e^b/(e^b + Z) goes to the sink."""
    model = host("deit")
    unsmooth.apply(model, "sink_logit")
    for _, _, effective in calls(model):
        assert (1 - effective.sum(-1)).abs().max() < 1e-3
    for _, part in unsmooth.parts(model):
        part.b.data.fill_(50.0)
    for _, out, effective in calls(model):
        assert effective.sum(-1).max() < 1e-6
        assert out.abs().max() < 1e-5


def test_registers_can_be_diagnosed() -> None:
    model = treat(host("deit"), "registers")
    diagnosis = unsmooth.diagnose(model, limit=2)
    assert diagnosis is not None

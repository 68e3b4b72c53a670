"""Hosts whose blocks see windows of other sizes, pieces of an image, one token, or all images as one sequence."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import treat
from unsmooth.hosts.inputs import image_size


def timm_hiera() -> nn.Module:
    sizes = {"img_size": 64, "embed_dim": 24, "num_heads": 1, "stages": (1, 1, 2, 1)}
    return timm.create_model("hiera_tiny_224", pretrained_cfg_overlay={"input_size": (3, 64, 64)}, **sizes)


def timm_tnt() -> nn.Module:
    return timm.create_model("tnt_s_legacy_patch16_224", depth=2, img_size=64)


def timm_mobilevit() -> nn.Module:
    return timm.create_model("mobilevit_xxs", pretrained_cfg_overlay={"input_size": (3, 64, 64)})


def hf_hiera() -> nn.Module:
    from transformers import HieraConfig, HieraModel

    config = HieraConfig(embed_dim=24, image_size=[64, 64], depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8])
    return HieraModel(config)  # type: ignore[no-any-return]


def hf_mobilevit() -> nn.Module:
    from transformers import MobileViTConfig, MobileViTModel

    sizes = [8, 16, 24, 32, 40, 48, 64]
    return MobileViTModel(MobileViTConfig(image_size=64, hidden_sizes=[24, 32, 40], neck_hidden_sizes=sizes))  # type: ignore[no-any-return]


def hf_pixtral() -> nn.Module:
    from transformers import PixtralVisionConfig, PixtralVisionModel

    config = PixtralVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=64, patch_size=16
    )
    return PixtralVisionModel(config)  # type: ignore[no-any-return]


HOSTS = [timm_hiera, timm_tnt, timm_mobilevit, hf_hiera, hf_mobilevit, hf_pixtral]


def images_of(model: nn.Module, count: int) -> Tensor:
    return torch.randn(count, *image_size(model), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("build", HOSTS)
def test_every_vital_has_a_value_or_a_reason(build, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build().eval()
    images = images_of(model, 5)
    loader = [(images[:4], torch.tensor([0, 1, 0, 1])), (images[4:], torch.tensor([1]))]
    diagnosis = unsmooth.diagnose(model, loader, vitals="all", reference=False)
    assert diagnosis.images.count == 5
    for key, vital in diagnosis.vitals.items():
        for block in range(len(diagnosis.model.blocks)):
            measured = any(series[block] is not None for series in vital.parts.values())
            assert measured or vital.skipped.get(block), (key, block)
    assert any(mean is not None for mean in diagnosis["token_cosine"])
    assert any(mean is not None for mean in diagnosis["attention_entropy"])
    assert diagnosis["depth_probe"][0] is not None
    diagnosis.save(tmp_path / "page.html")


@pytest.mark.parametrize("build", [timm_tnt, hf_mobilevit, hf_pixtral])
def test_values_do_not_depend_on_the_batch(build) -> None:
    """The pieces of an image count as one image, and images that a host packs are told apart."""
    torch.manual_seed(0)
    model = build().eval()
    images = images_of(model, 3)
    vitals = ["token_cosine", "effective_rank", "attention_entropy", "branch_ratio"]
    together = unsmooth.diagnose(model, images, vitals, reference=False, batch_size=3)
    single = [unsmooth.diagnose(model, image.unsqueeze(0), vitals, reference=False) for image in images]
    for key in ("token_cosine", "attention_entropy"):
        for block, value in enumerate(together[key]):
            parts = [one[key][block] for one in single]
            if value is None:
                assert parts == [None] * 3
            else:
                assert value == pytest.approx(sum(parts) / 3, abs=2e-4), (key, block)


def test_pieces_are_averaged_by_image() -> None:
    """Token similarity of TNT's pixel tokens: the mean over the patches of each image, by hand."""
    torch.manual_seed(0)
    model = timm_tnt().eval()
    images = images_of(model, 2)
    kept: list[Tensor] = []
    handle = model.blocks[1].register_forward_hook(lambda module, args, output: kept.append(output[0]))
    with torch.no_grad():
        model(images)
    handle.remove()
    u = torch.nn.functional.normalize(kept[0].double(), dim=-1)
    n = u.shape[1]
    cosine = ((u @ u.mT).abs().sum(dim=(1, 2)) - n) / (n * (n - 1))
    diagnosis = unsmooth.diagnose(model, images, "token_cosine", reference=False)
    spread = diagnosis.vitals["token_cosine"].parts[""][1]
    assert spread.images == 2
    assert spread.mean == pytest.approx(float(cosine.mean()), abs=1e-4)


def test_sums_of_an_inner_block_do_not_belong_to_the_outer_one() -> None:
    model = timm.create_model("efficientformerv2_s0").eval()
    plan = unsmooth.plan(model, "no_skip")
    assert "residual sums" in plan.refused[2] and [b.block for b in plan.blocks if not b.refusal] == [0, 1, 3, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unsmooth.apply(model, "no_skip")
    with torch.no_grad():
        assert model(torch.randn(2, 3, 224, 224)).isfinite().all()


class OneHead(nn.Module):
    """The attention of one head that vit-pytorch's T2T has: no projection after it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.to_qkv = nn.LayerNorm(channels), nn.Linear(channels, 3 * channels)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(self.norm(x)).unsqueeze(1).chunk(3, dim=-1)
        return ((q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(dim=-1) @ v).squeeze(1)


class Stage(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attn = OneHead(channels)
        self.mlp = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, 16), nn.GELU(), nn.Linear(16, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(x) + x
        return self.mlp(x) + x


class Small(nn.Module):
    image_size = 16

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.stages = nn.Conv2d(3, 12, 4, 4), nn.Sequential(Stage(12), Stage(12))

    def forward(self, image: Tensor) -> Tensor:
        return self.stages(self.embed(image).flatten(2).mT).mean(dim=1)


@pytest.mark.parametrize("remedy", ["feat_scale", "layer_scale(init=0.5)", "attn_scale+feat_scale"])
def test_a_gain_after_attention_without_a_projection_folds_into_its_values(remedy: str) -> None:
    torch.manual_seed(0)
    model = treat(Small().eval(), remedy)
    images = torch.randn(2, 3, 16, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "stays as it is"
        folded = unsmooth.fold(model)
    assert torch.allclose(folded(images), model(images), atol=1e-5)
    assert not any(parameter.requires_grad for _, part in unsmooth.parts(folded) for parameter in part.parameters())

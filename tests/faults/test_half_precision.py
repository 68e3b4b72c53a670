"""Vitals of hosts in half precision are those of the same host in single precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import host, treat


def sharp(name: str) -> nn.Module:
    """A host whose scores before scaling exceed 65,504, the largest number of float16."""
    model = host(name)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[: 2 * 48] *= 80
    return model


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("remedy", ["", "attn_scale", "adder_attention", "logistic_attention"])
def test_scores_and_maps_are_measured_in_single_precision(images: Tensor, remedy: str) -> None:
    model = sharp("deit") if not remedy else treat(sharp("deit"), remedy)
    single = unsmooth.diagnose(model, images, reference=False)
    half = unsmooth.diagnose(model.half(), images.half(), reference=False)
    assert single["max_logit"][0] > (10_000 if remedy in ("", "attn_scale") else 100)
    assert half["max_logit"][0] == pytest.approx(single["max_logit"][0], rel=0.02)
    for key, vital in half.vitals.items():
        assert vital.skipped == single.vitals[key].skipped, key


def test_autocast_does_not_round_the_scores(images: Tensor) -> None:
    model = sharp("deit")
    single = unsmooth.diagnose(model, images, vitals="max_logit", reference=False)
    with torch.autocast("cpu", torch.float16):
        half = unsmooth.diagnose(model, images, vitals="max_logit", reference=False)
    assert half["max_logit"][0] == pytest.approx(single["max_logit"][0], rel=0.02)

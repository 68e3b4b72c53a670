"""Surgery beside other changes of a model: parametrisations, inference mode."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import unsmooth
from tests.support.small_hosts import host
from unsmooth.errors import NotApplicable, UnsmoothError
from unsmooth.remedies.base import REGISTRY


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_remove_refuses_a_module_that_was_parametrised_later() -> None:
    model = host("deit").eval()
    image = torch.randn(1, 3, 32, 32)
    before = model(image)
    unsmooth.apply(model, "attn_scale")
    model.blocks[0].attn.register_parameter("gain", nn.Parameter(torch.ones(3)))
    parametrize.register_parametrization(model.blocks[0].attn, "gain", Doubled())
    treated = model(image)
    with pytest.raises(UnsmoothError, match=r"blocks.0.attn was parametrised after a remedy was applied"):
        unsmooth.remove(model)
    assert torch.equal(model(image), treated)  # nothing was removed
    assert torch.equal(model.blocks[0].attn.gain, torch.full((3,), 2.0))
    parametrize.remove_parametrizations(model.blocks[0].attn, "gain", leave_parametrized=False)
    unsmooth.remove(model)
    assert torch.equal(model(image), before)


def test_a_parametrisation_of_another_module_does_not_matter() -> None:
    model = host("deit").eval()
    unsmooth.apply(model, "attn_scale")
    parametrizations.weight_norm(model.blocks[0].attn.qkv)
    unsmooth.remove(model)
    assert type(model.blocks[0].attn).__name__ == "Attention" and parametrize.is_parametrized(model.blocks[0].attn.qkv)
    model(torch.randn(1, 3, 32, 32)).sum().backward()


@pytest.mark.parametrize("remedy", sorted(REGISTRY))
def test_a_remedy_applied_in_inference_mode_can_be_trained(remedy: str) -> None:
    model = host("deit").train()
    try:
        with torch.inference_mode():
            unsmooth.apply(model, remedy)
    except NotApplicable:
        pytest.skip("the host has no place for it")
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert not any(tensor.is_inference() for tensor in (*model.parameters(), *model.buffers()))

"""Register neurons: a planted one is found and moved, and the rest of the host stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.remedies.test_equations import images, numpy_outputs
from tests.support import numpy_vit as ref
from tests.support.small_hosts import host

BLOCK, NEURON, PATCH = 0, 5, 7


def with_outlier() -> nn.Module:
    """A host whose neuron 5 of block 0 fires on patch 7 alone, and then writes a vector of very large norm."""
    model = host("deit")
    mlp = model.blocks[BLOCK].mlp
    mlp.fc1.weight.data[NEURON] = 0
    mlp.fc1.bias.data[NEURON] = 0
    mlp.fc2.weight.data[:, NEURON] = 40 * torch.randn(48, generator=torch.Generator().manual_seed(0))

    def fire(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        output = output.clone()
        output[:, 1 + PATCH, NEURON] += 6.0
        return output

    mlp.fc1.register_forward_hook(fire)
    return model


def patch_norms(model: nn.Module) -> Tensor:
    met: list[Tensor] = []
    handle = model.blocks[-1].register_forward_hook(lambda _, __, out: met.append(out))
    with torch.no_grad():
        model(images())
    handle.remove()
    return met[0][:, 1:].norm(dim=-1)


def test_a_planted_neuron_is_found_and_its_outlier_moves_out_of_the_patches() -> None:
    model = with_outlier()
    before = patch_norms(model)
    assert (before.argmax(-1) == PATCH).all()
    unsmooth.apply(model, "test_time_register")
    (found,) = unsmooth.find_register_neurons(model, images(), count=1)
    assert (found.block, found.neuron) == (BLOCK, NEURON)
    assert found.activation == pytest.approx(6.0, rel=1e-3)
    after = patch_norms(model)
    assert after.max() < 0.2 * before.max()
    register = model.blocks[-1].unsmooth_test_time_register_output.taken.latest()
    assert register.norm(dim=-1).min() > 0.5 * before.max()
    unsmooth.remove(model)
    assert torch.equal(patch_norms(model), before)


def test_the_moved_activations_are_the_equation() -> None:
    model = host("deit")
    unsmooth.apply(model, "test_time_register")
    unsmooth.find_register_neurons(model, images(), count=9, threshold=0.0)
    assert sum(int(part.neurons.sum()) for _, part in unsmooth.parts(model) if hasattr(part, "neurons")) == 9
    expected = numpy_outputs(ref.TestTimeRegister, {}, model, images())
    with torch.no_grad():
        actual = model.double()(images().double()).numpy()
    assert np.abs(actual - expected).max() < 1e-9 * np.abs(expected).max()


def test_neurons_have_the_largest_mean_activation_at_outliers() -> None:
    """With every patch an outlier: the mean over patches of |h|, then over images, sorted over both blocks."""
    model = host("deit")
    met: list[Tensor] = []
    for block in model.blocks:
        block.mlp.fc2.register_forward_pre_hook(lambda _, args: met.append(args[0].detach()))
    model(images())
    means = torch.cat([h[:, 1:].abs().mean(1).mean(0) for h in met])
    unsmooth.apply(model, "test_time_register")
    found = unsmooth.find_register_neurons(model, images(), count=6, threshold=0.0)
    assert [each.block * 192 + each.neuron for each in found] == means.topk(6).indices.tolist()
    again = unsmooth.find_register_neurons(model, images(), count=6, threshold=0.0)
    assert again == found, "neurons that were found before do not change what is found"
    early = unsmooth.find_register_neurons(model, images(), count=6, threshold=0.0, before=1)
    assert {each.block for each in early} == {0}


def test_the_neurons_are_saved(tmp_path: object) -> None:
    model = host("deit")
    unsmooth.apply(model, "test_time_register")
    unsmooth.find_register_neurons(model, images(), count=3, threshold=0.0)
    unsmooth.save(model, str(tmp_path))
    with torch.no_grad():
        assert torch.equal(unsmooth.load(str(tmp_path)).eval()(images()), model(images()))


def test_bad_input() -> None:
    model = host("deit")
    with pytest.raises(unsmooth.UnsmoothError, match="does not have test_time_register"):
        unsmooth.find_register_neurons(model, images())
    unsmooth.apply(model, "test_time_register")
    with pytest.raises(unsmooth.UnsmoothError, match="nothing to move"):
        unsmooth.find_register_neurons(model, images(), threshold=1e9)
    with pytest.raises(unsmooth.UnsmoothError, match="between 1 and 384"):
        unsmooth.find_register_neurons(model, images(), count=1000)

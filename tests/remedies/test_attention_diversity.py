"""The attention diversity loss, against plain NumPy, and how it trains."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.support import numpy_vit as ref
from tests.support.small_hosts import host
from unsmooth.remedies.attention_diversity import head_similarity


def numpy_similarity(maps: np.ndarray) -> float:
    """Of (images, heads, queries, keys): each pair of different heads, one after the other."""
    values = []
    for image in maps:
        for g in range(len(image)):
            for h in range(len(image)):
                if g != h:
                    a, b = image[g].ravel(), image[h].ravel()
                    values.append(abs(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b)))
    return float(np.mean(values))


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Maps(ref.Reference):
    """The host itself; the maps of its blocks are kept."""

    kept: list[np.ndarray]

    def all_maps(self, block: str, a: np.ndarray) -> np.ndarray:
        self.kept.append(a)
        return a


def training(spec: str = "attention_diversity", name: str = "deit") -> nn.Module:
    model = host(name).double().train()
    for module in model.modules():
        if type(module).__name__ == "DropPath":
            module.drop_prob = 0.0
    for remedy in spec.split("+"):
        unsmooth.apply(model, remedy)
    return model


def term(model: nn.Module) -> Tensor:
    value = unsmooth.auxiliary_loss(model)
    assert value is not None
    return value


def test_the_loss_is_its_equation() -> None:
    maps = torch.rand(3, 4, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(head_similarity(maps)) == pytest.approx(numpy_similarity(maps.numpy()), rel=1e-12)


def test_closed_forms() -> None:
    eye = torch.eye(4).view(1, 1, 4, 4)
    assert float(head_similarity(eye.expand(2, 3, 4, 4))) == pytest.approx(1)
    assert float(head_similarity(torch.cat([eye, eye.flip(-1)], dim=1))) == 0
    assert float(head_similarity(torch.cat([eye, torch.full_like(eye, 0.25)], dim=1))) == pytest.approx(0.5)


def test_the_term_of_a_host_is_that_of_its_maps() -> None:
    model = training("attention_diversity(weight=0.3)")
    model(images())
    reference = Maps({name: value.detach().numpy() for name, value in model.state_dict().items()}, 3, 8)
    reference.kept = []
    reference(images().numpy())
    blocks = [np.stack(reference.kept[block::2]) for block in range(2)]  # an image after the other, all its blocks
    assert term(model).item() == pytest.approx(0.3 * np.mean([numpy_similarity(maps) for maps in blocks]), rel=1e-9)


@pytest.mark.parametrize("name", ["deit", "cait", "swin", "torchvision_vit", "hf_vit"])
def test_a_step_along_its_gradient_makes_maps_less_alike(name: str) -> None:
    model = training(name=name)
    image = torch.randn(2, 3, *((56, 56) if name == "swin" else (32, 32)), dtype=torch.float64)
    given = {"pixel_values": image} if name == "hf_vit" else {}
    run = (lambda: model(**given)) if given else (lambda: model(image))
    run()
    before = term(model)
    before.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-2 * parameter.grad
    run()
    assert term(model) < before


def test_outputs_stay_and_nothing_is_kept_outside_of_training() -> None:
    model, plain = training(), host("deit").double().train()
    for module in plain.modules():
        if type(module).__name__ == "DropPath":
            module.drop_prob = 0.0
    assert torch.equal(model(images()), plain(images()))
    model(images())
    copied = copy.deepcopy(model)
    assert all(part.maps is None for _, part in unsmooth.parts(copied))
    term(model)
    assert all(part.maps is None for _, part in unsmooth.parts(model))
    model.eval()(images())
    with pytest.raises(unsmooth.UnsmoothError, match="no forward pass in training mode"):
        unsmooth.auxiliary_loss(model)


def test_it_reads_the_map_of_remedies_that_were_applied_before() -> None:
    model = training("shaped_attention+attention_diversity")
    for _, part in unsmooth.parts(model, "shaped_attention"):
        part.beta.data.zero_()
        part.alpha.data.fill_(1.0)  # every map is the identity
    model(images())
    assert term(model).item() == pytest.approx(0.5)


def test_checkpointed_blocks_give_the_same_gradients() -> None:
    gradients = []
    for checkpointed in (False, True):
        model = training()
        model.set_grad_checkpointing(checkpointed)
        (model(images()).square().mean() + term(model)).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)

"""The loss of gram_anchor against plain NumPy, and its reference: frozen, outside the state dict, set again by load."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.support.small_hosts import host
from unsmooth.errors import UnsmoothError
from unsmooth.remedies.gram_anchor import ReferenceBuffer, gram_distance


def numpy_distance(x: np.ndarray, y: np.ndarray, negative: bool = True) -> float:
    images = []
    for own, anchor in zip(x, y, strict=True):
        total = 0.0
        for i in range(len(own)):
            for j in range(len(own)):
                pair = [t[i] @ t[j] / (np.linalg.norm(t[i]) * np.linalg.norm(t[j])) for t in (own, anchor)]
                a, b = pair if negative else [max(value, 0.0) for value in pair]
                total += (a - b) ** 2
        images.append(total / len(own) ** 2)
    return float(np.mean(images))


def images(count: int = 2, side: int = 32) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def anchored(name: str = "deit", spec: str = "gram_anchor") -> nn.Module:
    model = host(name).double().train()
    for module in model.modules():
        if type(module).__name__ == "DropPath":
            module.drop_prob = 0.0
    unsmooth.apply(model, spec)
    return model


def term(model: nn.Module, x: Tensor) -> Tensor:
    model(x)
    value = unsmooth.auxiliary_loss(model)
    assert value is not None
    return value


def moved(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator).to(parameter)


def last_tokens(model: nn.Module, x: Tensor) -> np.ndarray:
    seen: list[Tensor] = []
    handle = model.get_submodule("blocks.1").register_forward_hook(lambda m, a, out: seen.append(out))
    with torch.no_grad():
        model(x)
    handle.remove()
    return seen[0][:, 1:].numpy()


@pytest.mark.parametrize("negative", [True, False])
def test_the_distance_is_its_equation_and_the_reference_has_no_gradient(negative: bool) -> None:
    x, y = (torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (0, 1))
    assert float(gram_distance(x, y, negative)) == pytest.approx(numpy_distance(x.numpy(), y.numpy(), negative))
    assert float(gram_distance(x, 5 * x)) == pytest.approx(0.0, abs=1e-20)
    turn = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))[0]
    assert float(gram_distance(x @ turn, y)) == pytest.approx(float(gram_distance(x, y)))
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: gram_distance(x, y), (x,))


def test_the_loss_compares_with_the_model_as_it_was_when_the_remedy_was_applied() -> None:
    before, x = host("deit").double().eval(), images()
    model = anchored("deit", "gram_anchor(weight=0.3)")
    assert term(model, x).item() == pytest.approx(0.0, abs=1e-12)
    moved(model)
    value = term(model, x)
    wanted = numpy_distance(last_tokens(copy.deepcopy(model).eval(), x), last_tokens(before, x))
    assert wanted > 1e-6 and value.item() == pytest.approx(0.3 * wanted)
    value.backward()
    assert model.get_parameter("blocks.0.attn.qkv.weight").grad is not None


def test_the_reference_is_no_part_of_the_model() -> None:
    plain, model = host("deit"), anchored()
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in plain.parameters())


def test_copies_share_the_reference_and_have_their_own_images() -> None:
    model, x = anchored(), images()
    copied = copy.deepcopy(model)
    model(x)
    buffers = [next(m for m in owner.modules() if isinstance(m, ReferenceBuffer)) for owner in (model, copied)]
    assert buffers[0].frozen is buffers[1].frozen and buffers[1].tokens is None
    with pytest.raises(UnsmoothError, match="saw no forward pass"):
        unsmooth.auxiliary_loss(copied)


def test_a_saved_model_loads_without_the_reference_and_is_then_its_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    spec = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, num_heads=2, depth=2)+gram_anchor"
    model = unsmooth.create_model(spec)
    moved(model)
    unsmooth.save(model, tmp_path)
    loaded = unsmooth.load(tmp_path).train()
    assert term(loaded, images().float()).item() == pytest.approx(0.0, abs=1e-10)
    assert term(model.train(), images().float()).item() > 1e-4


def test_the_weights_of_a_file_are_the_reference(tmp_path: Path) -> None:
    other, x = host("deit").double().eval(), images()
    moved(other)
    unsmooth.save(other, tmp_path)
    model = anchored("deit", f"gram_anchor(reference={str(tmp_path)!r})")
    own = last_tokens(copy.deepcopy(model).eval(), x)
    assert term(model, x).item() == pytest.approx(numpy_distance(own, last_tokens(other, x)))


def test_a_reference_that_is_missing_or_of_another_host_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"the reference of gram_anchor, .*nowhere\.safetensors, does not exist"):
        term(anchored("deit", f"gram_anchor(reference='{tmp_path}/nowhere.safetensors')"), images())
    unsmooth.save(host("cait"), tmp_path)
    with pytest.raises(UnsmoothError, match="does not fit as the reference of gram_anchor"):
        term(anchored("deit", f"gram_anchor(reference='{tmp_path}')"), images())

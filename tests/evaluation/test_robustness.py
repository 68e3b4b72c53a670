"""Holes and attacks: where an exact answer exists, it is the answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.small_hosts import host
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.robustness import fgsm, occlude

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


class Linear(nn.Module):
    """Two classes; the logit of the second is a weighted sum of the image."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        logit = (x * self.weight).flatten(1).sum(1)
        return torch.stack([torch.zeros_like(logit), logit], 1)


def to_pixels(x: Tensor) -> np.ndarray:
    mean, std = (np.array(v).reshape(3, 1, 1) for v in (MEAN, STD))
    return (x.double().numpy() * std + mean) * 255


@pytest.mark.parametrize("epsilon", [0.5, 1, 8])
def test_fgsm_on_a_linear_model_is_exact(epsilon: float) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 3, 6, 6)).astype(float)
    pixels[0, 0, 0, :2] = 0, 255  # at the ends, where clipping shows
    mean, std = (np.array(v).reshape(3, 1, 1) for v in (MEAN, STD))
    images = torch.tensor((pixels / 255 - mean) / std, dtype=torch.float32)
    weight = torch.tensor(rng.normal(size=(3, 6, 6)), dtype=torch.float32)
    weight[0, 0, 5] = 0  # no gradient, no step
    labels = torch.tensor([0, 1, 0, 1])
    model = Linear(weight)
    actual = to_pixels(fgsm(model, images, labels, epsilon, MEAN, STD))
    # The loss of label 1 falls with the logit, that of label 0 rises.
    direction = np.where(labels.numpy() == 1, -1, 1).reshape(4, 1, 1, 1) * np.sign(weight.numpy())
    np.testing.assert_allclose(actual, np.clip(pixels + epsilon * direction, 0, 255), atol=1e-3)
    assert abs(actual - pixels).max() == pytest.approx(epsilon, abs=1e-3)
    assert model.weight.grad is None


def test_fgsm_of_an_image_does_not_depend_on_its_batch_nor_on_autocast() -> None:
    model = host("deit")
    images, labels = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 0.3, torch.arange(5)
    with torch.no_grad():
        together = fgsm(model, images, labels, 2, MEAN, STD)
        alone = fgsm(model, images[3:4], labels[3:4], 2, MEAN, STD)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = fgsm(model, images, labels, 2, MEAN, STD)
    differ = (together[3:4] != alone).float().mean()
    assert differ < 0.01  # gradients of nearly nothing may change sign with the order of sums
    assert torch.equal(mixed, together)


def test_fgsm_raises_the_loss_of_a_real_host() -> None:
    model = host("hf_vit")
    images, labels = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 0.3, torch.arange(8) % 2
    with torch.no_grad():
        losses = [
            nn.functional.cross_entropy(model(pixel_values=x).logits, labels)
            for x in (images, fgsm(model, images, labels, 1, MEAN, STD), fgsm(model, images, labels, 4, MEAN, STD))
        ]
    assert losses[0] < losses[1] < losses[2]


@pytest.mark.parametrize("size", [(8, 8), (224, 224), (32, 64)])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 1.0])
def test_occlusion_covers_a_share_of_the_area_in_the_centre(size: tuple[int, int], share: float) -> None:
    images = 1 + torch.rand(2, 3, *size)
    before = images.clone()
    actual = occlude(images, share)
    assert torch.equal(images, before)
    hidden = (actual == 0).all(1).all(0).numpy()
    assert torch.equal(actual == 0, torch.as_tensor(hidden).expand_as(actual))
    rows, columns = np.flatnonzero(hidden.any(1)), np.flatnonzero(hidden.any(0))
    assert hidden.sum() == len(rows) * len(columns), "one box"
    # Each side is within half a pixel of its share, √share of the image's side.
    assert abs(len(rows) - size[0] * share**0.5) <= 0.5 and abs(len(columns) - size[1] * share**0.5) <= 0.5
    for places, side in ((rows, size[0]), (columns, size[1])):
        assert abs(places[0] - (side - 1 - places[-1])) <= 1, "in the centre"
    assert torch.equal(actual[..., ~torch.as_tensor(hidden)], images[..., ~torch.as_tensor(hidden)])


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan"), 0.001])
def test_occlusion_of_no_share_is_refused(share: float) -> None:
    with pytest.raises(UnsmoothError, match="occlusion"):
        occlude(torch.zeros(1, 3, 8, 8), share)


@pytest.mark.parametrize("epsilon", [0, -1, 256, float("nan")])
def test_fgsm_refuses_steps_out_of_range(epsilon: float) -> None:
    with pytest.raises(UnsmoothError, match="pixels"):
        fgsm(Linear(torch.ones(3, 2, 2)), torch.zeros(1, 3, 2, 2), torch.tensor([0]), epsilon, MEAN, STD)

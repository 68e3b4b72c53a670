"""cct_12_3x2_32: its weights, what it computes with them, and the record and card of its accuracy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

import unsmooth
from unsmooth.models.cct import CIFAR10_MEAN, CIFAR10_STD, TRAINED, WEIGHTS
from unsmooth.surgery.check import checkup
from unsmooth.utils.intervals import wilson_interval

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / TRAINED
SCORES = json.loads((RECORD / "scores.json").read_text(encoding="utf-8"))
LOGITS = (  # of the two photographs of scikit-learn, a temple and a flower, computed once
    (0.969, -0.064, 1.776, -0.802, -1.130, -1.858, -1.161, 0.606, 0.232, 0.478),
    (-1.128, -0.815, 3.115, 0.971, -1.117, -0.635, 1.174, -0.667, -0.824, -1.071),
)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return unsmooth.create_model(f"{TRAINED}(pretrained=true)").eval()


def photographs() -> Tensor:
    """The centres of the two photographs, averaged over areas to 32 × 32 pixels, in the preprocessing of the host."""
    pixels = torch.stack([torch.from_numpy(image.copy()) for image in load_sample_images().images])
    squares = pixels.permute(0, 3, 1, 2)[..., 107:-107].double() / 255  # 427 × 426
    small = nn.functional.interpolate(squares, size=(32, 32), mode="area")
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (CIFAR10_MEAN, CIFAR10_STD))
    return ((small - mean) / std).float()


def test_logits_of_photographs_are_the_recorded_ones(model: nn.Module) -> None:
    with torch.no_grad():
        torch.testing.assert_close(model(photographs()), torch.tensor(LOGITS), rtol=1e-3, atol=1e-3)


def test_the_file_is_small_and_every_parameter_is_in_it(model: nn.Module) -> None:
    weights = load_file(WEIGHTS)
    assert WEIGHTS.stat().st_size == SCORES["bytes"] <= 2e6
    assert {value.dtype for value in weights.values()} == {torch.float16}
    assert sum(value.numel() for value in weights.values()) == SCORES["parameters"] <= 1e6
    loaded = model.state_dict()
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[key], value.float()) for key, value in weights.items())


def test_its_shape_and_its_preprocessing(model: nn.Module) -> None:
    cfg = model.pretrained_cfg
    assert (cfg["mean"], cfg["std"], cfg["input_size"]) == (CIFAR10_MEAN, CIFAR10_STD, (3, 32, 32))
    assert model.forward_features(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 96)
    assert len(checkup(TRAINED).anatomy.blocks) == 12


def test_the_card_states_the_recorded_accuracy() -> None:
    card = (ROOT / "docs" / f"{TRAINED}.md").read_text(encoding="utf-8")
    correct = round(SCORES["top1"] * SCORES["images"])
    low, high = wilson_interval(correct, SCORES["images"])
    assert (low, high) == pytest.approx(SCORES["top1_interval"])
    assert correct >= 8000 and SCORES["images"] == 10_000
    assert f"{correct / 100:.2f} % of the 10,000 test images ({100 * low:.2f} to {100 * high:.2f})" in card
    last = json.loads((RECORD / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["val_top1"] == pytest.approx(SCORES["top1_of_the_run"]) and last["epoch"] == SCORES["epochs"]

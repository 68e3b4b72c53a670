"""Where a model comes from: its weights, its device, and the reference at random initialisation."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

import unsmooth
from unsmooth.diagnosis.random_reference import random_reference
from unsmooth.errors import UnsmoothError
from unsmooth.utils.devices import choose_device

HOST = "deit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=48, depth=2, num_classes=5)"
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_classes": 5}


def weights_of(model: nn.Module | str | Path, **fields: object) -> unsmooth.Diagnosis:
    return unsmooth.diagnose(model, torch.zeros(1, 3, 32, 32) + torch.arange(32.0), quick=True, **fields)


def test_weights_are_identified(tmp_path: Path) -> None:
    model = unsmooth.create_model(HOST)
    file = tmp_path / "mine.pth"
    torch.save(model.state_dict(), file)
    unsmooth.save(model, tmp_path / "saved")
    none = weights_of(HOST)
    assert none.model.weights.kind == "none" and str(none).startswith("No weights were loaded")
    assert "--checkpoint" in none.conclusion.steps[0].command
    loaded = weights_of(HOST, checkpoint=file).model.weights
    assert (loaded.kind, loaded.name) == ("file", str(file))
    assert hashlib.sha256(file.read_bytes()).hexdigest().startswith(loaded.sha256) and len(loaded.sha256) == 12
    saved = weights_of(tmp_path / "saved").model.weights
    stored = (tmp_path / "saved" / "model.safetensors").read_bytes()
    assert saved.kind == "folder" and hashlib.sha256(stored).hexdigest().startswith(saved.sha256)


def test_the_digest_of_an_object_depends_on_its_weights_only() -> None:
    torch.manual_seed(0)
    model = unsmooth.create_model(HOST)
    first = weights_of(model).model.weights
    assert first.kind == "object" and weights_of(model).model.weights == first
    with torch.no_grad():
        model.head.bias[0] += 1
    assert weights_of(model).model.weights.sha256 != first.sha256


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device(None).type in ("cuda", "mps", "cpu")
    for name in ("gpu", "cuda:99"):
        with pytest.raises(UnsmoothError, match=f"device '{name}' cannot be used"):
            choose_device(name)
    with pytest.raises(UnsmoothError, match=r"Move it first: model.to\('cpu'\)"):
        weights_of(unsmooth.create_model(HOST), device="cpu")


def trained(model: nn.Module) -> nn.Module:
    """Parameters that no initialisation draws."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) + 3)
    return model


def test_a_timm_object_is_created_again_from_its_architecture_and_sizes() -> None:
    model = trained(timm.create_model("deit_tiny_patch16_224", **SIZES))
    reference = random_reference(model)
    assert reference.kept == [] and "found from its class and sizes" in reference.how
    created = timm.create_model("deit_tiny_patch16_224", **SIZES)
    for name, value in reference.model.state_dict().items():
        expected = created.state_dict()[name].std()
        assert value.std() == pytest.approx(float(expected), rel=0.5, abs=1e-3), name


def test_an_altered_object_is_reset_by_its_own_functions() -> None:
    model = trained(timm.create_model("deit_tiny_patch16_224", **SIZES))
    model.blocks[1].mlp.fc1 = nn.Linear(48, 64)
    model.blocks[1].mlp.fc2 = nn.Linear(64, 48)
    reference = random_reference(model)
    assert "init_weights" in reference.how and reference.kept == []
    assert reference.model.pos_embed.abs().max() < 1 and model.pos_embed.mean() > 2  # the model is unchanged


class Bare(nn.Module):
    """A module with a parameter that nothing initialises."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, 4, 8))
        self.layer = nn.Linear(8, 8)


def test_a_reference_that_keeps_trained_values_is_approximate() -> None:
    reference = random_reference(trained(Bare()))
    assert reference.kept == ["position"] and "trained values kept: position" in reference.how
